"""The log of a long-running process: one line per event, for people or (``json``) for machines.

A line says which saga, step and attempt it is about, whoever wrote it: the engine, Temporal's SDK or an action with
``step.logger``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

LogFormat = Literal["text", "json"]


def configure_logs(format: LogFormat, *, debug: bool = False) -> None:
    """Set up the root logger of this process; everything goes to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if format == "json" else _Text())
    handler.addFilter(_not_twice)
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
    for name in ("httpx", "httpcore"):  # they tell every request; our own line per attempt says more
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.WARNING)
    # librdkafka tells every try of a connection, each as an error; what comes of it is in our own lines.
    logging.getLogger("saga.kafka").setLevel(logging.DEBUG if debug else logging.CRITICAL)
    # What they would append to every message as a Python dict is in the fields of our lines.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False


def _not_twice(record: logging.LogRecord) -> bool:
    """False for Temporal's own word about a failed attempt, with the traceback of our answer: `saga.step` has said it.

    An error that is no answer of ours is a bug, and stays in the log.
    """
    if record.name != "temporalio.activity" or record.msg != "Completing activity as failed":
        return True
    return not (record.exc_info and isinstance(record.exc_info[1], ApplicationError))


def context_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the line is about: ``saga``, ``saga_id``, ``step``, ``op``, ``attempt``, as far as it is known."""
    ours = getattr(record, "context", None)
    if isinstance(ours, Mapping):
        return dict(ours)
    about = getattr(record, "temporal_activity", None)
    if isinstance(about, Mapping):
        return {
            "saga": about.get("workflow_type"),
            "saga_id": about.get("workflow_id"),
            "step": about.get("activity_id"),
            "attempt": about.get("attempt"),
        }
    about = getattr(record, "temporal_workflow", None)
    if isinstance(about, Mapping):
        return {"saga": about.get("workflow_type"), "saga_id": about.get("workflow_id")}
    return {}


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        about = context_of(record)
        words = [str(about[name]) for name in ("saga_id", "step") if about.get(name)]
        if about.get("op") not in (None, "do"):
            words.append(str(about["op"]))
        if (about.get("attempt") or 1) > 1:
            words.append(f"attempt {about['attempt']}")
        where = f"{' '.join(words)}: " if words else ""
        line = f"{_time(record)} {record.levelname} {record.name} {where}{_one_line(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **context_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
