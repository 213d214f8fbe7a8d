"""The log of a long-running process: one line per event, as text or (``json``) as JSON.

Each line has the saga, step and attempt as fields, whether the engine, Temporal's SDK or an action with ``step.logger``
wrote it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, Literal

from temporalio import activity, workflow
from temporalio.exceptions import CancelledError

from saga_activities.attempt_context import ObservedAttempt
from sagas.settings.masking import mask, mask_properties
from sagas.text.author_values import text_of
from sagas.text.printable import printable, printable_json, printable_line
from sagas.workflow.failures import SagaApplicationError, UnexpectedError
from sagas.workflow.run_trust import KeyMissing

LogFormat = Literal["text", "json"]


def configure_logs(format: LogFormat, *, debug: bool = False) -> None:
    """Set up the root logger of this process; everything goes to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
    for name in ("httpx", "httpcore"):  # they log every request; our line per attempt has more
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.WARNING)
    # librdkafka logs every connection attempt as an error; its consequences are in our own lines.
    logging.getLogger("saga.kafka").setLevel(logging.DEBUG if debug else logging.CRITICAL)
    # What they would append to every message as a Python dict is in the fields of our lines.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False


def leave_out_responses() -> None:
    """Leave Temporal's records of failed attempts of sagas out of the log, also in a worker that has other activities.

    Their tracebacks show where the engine has responded; `saga.step` has logged the attempts. The traceback of a
    cancelled attempt only shows where it was waiting, so its record becomes one line without it.
    """
    activity.logger.base_logger.addFilter(_is_no_response)


def _is_no_response(record: logging.LogRecord) -> bool:
    """True unless it is about a response of the engine. Any other exception is a bug, or an activity of the worker."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, asyncio.CancelledError | CancelledError):
        record.msg, record.args, record.exc_info = "the attempt was cancelled before it had ended", (), None
    return not isinstance(error, SagaApplicationError) or isinstance(error, UnexpectedError)


def shorten_missing_keys() -> None:
    """Log a workflow task that waits for a worker with a key in one line, without Temporal's two tracebacks.

    Any client may send what is signed or encrypted with a key of its own, and each of its tasks is repeated.
    """
    for name in ("temporalio.worker._workflow", "temporalio.worker._workflow_instance"):
        logging.getLogger(name).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Shorten a record about a missing key; True."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyMissing):
        error = error.__cause__ or error.__context__
    if error is not None:
        record.msg, record.args, record.exc_info = "the workflow task is repeated: %s", (error,), None
    return True


def fields(**fields: Any) -> dict[str, Any]:
    """The ``extra`` of a log call: the ids of what the line is about, such as ``outbox``, ``shard`` or ``topic``."""
    return {"context": fields}


def record_context(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record, as far as known: ``saga``, ``saga_id``, ``step``, ``op``, ``attempt``, and its own."""
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


_IN_PREFIX = frozenset({"saga", "saga_id", "step", "op", "attempt", "outcome"})
"""Fields that the text format has before the message, or leaves out; it appends the others."""


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        about = record_context(record)
        words = [str(about[name]) for name in ("saga_id", "step") if about.get(name)]
        if about.get("op") not in (None, "do"):
            words.append(str(about["op"]))
        if (about.get("attempt") or 1) > 1:
            words.append(f"attempt {about['attempt']}")
        where = f"{' '.join(words)}: " if words else ""
        others = "".join(f" {name}={value}" for name, value in about.items() if name not in _IN_PREFIX)
        words = printable_line(mask(f"{where}{' '.join(record.getMessage().splitlines())}{others}"))
        line = f"{_timestamp(record)} {record.levelname} {record.name} {words}"
        if not record.exc_info:
            return line
        # Indented, so that no line of an exception's message looks like a line of the log.
        return f"{line}\n{indent(printable(mask(self.formatException(record.exc_info))), '    ')}"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": mask(record.getMessage()),
            **mask_properties(record_context(record)),
        }
        if record.exc_info:
            line["traceback"] = mask(self.formatException(record.exc_info))
        return printable_json(line)


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


log = logging.getLogger("saga.step")

_OUTCOME_MESSAGES = {
    "rejected": "rejected",
    "failed": "failed without an effect",
    "unknown": "has an unknown outcome",
    "late": "refused as late",
}


@contextmanager
def log_attempt(observed: ObservedAttempt) -> Iterator[None]:
    """Observe one attempt; see :data:`saga_activities.attempt_context.AttemptObserver`.

    A rejection is logged at INFO, an error as a warning. Success is logged for the undo only (the log of a healthy
    system stays short); at DEBUG everything is.
    """
    escaped = None
    try:
        yield
    except BaseException as error:
        escaped = error
        raise
    finally:
        invocation, outcome = observed.invocation, observed.outcome
        context: dict[str, Any] = {
            "saga": observed.saga,
            "saga_id": invocation.saga_id,
            "step": invocation.entry,
            "op": invocation.op,
            "attempt": observed.number,
        }
        if observed.awaits_reply:
            log.debug("%s: waiting for the reply", invocation.action, extra={"context": context})
        elif outcome is None:
            is_unknown = isinstance(escaped, SagaApplicationError) and escaped.type == "NotFoundError"
            problem = "is not registered with this worker"
            if not is_unknown:
                problem = f"ended without an outcome: {type(escaped).__name__}: {text_of(escaped)}"
            log.warning("%s %s", invocation.action, problem, extra={"context": context})
        elif outcome.kind == "done":
            level = logging.INFO if invocation.op == "undo" else logging.DEBUG
            words = (outcome.marker or "done").replace("_", " ")
            log.log(level, "%s: %s", invocation.action, words, extra={"context": context})
        else:
            failure = outcome.failure
            error = f": {failure.type}: {failure.message}" if failure is not None else ""
            level = logging.INFO if outcome.kind == "rejected" else logging.WARNING
            context["outcome"] = outcome.kind
            log.log(
                level, "%s %s%s", invocation.action, _OUTCOME_MESSAGES[outcome.kind], error, extra={"context": context}
            )
