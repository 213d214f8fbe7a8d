"""The protocol between a worker and its runner: one JSON object per line.

Worker to runner, on standard input: first ``{"settings": …}``, then ``{"run": id, "task": …, "request": …, "tag": …,
"sensitive_texts": texts that the log must not have}`` and ``{"cancel": id}``. End of file means that the worker has
exited.

Runner to worker, on a separate pipe, so that output printed by jobs does not interfere: ``{"beat": n}`` every second
while alive, ``{"ready": true}`` once it can run tasks, ``{"lost": message, "memory": bool}`` before it gives up,
``{"progress": id, "values": …}``, and for each run one ``{"answer": id, "result": …}`` or
``{"answer": id, "error": …}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_spark.job_errors import JobFailed, RunnerLost
from saga_spark.settings import SparkSettings
from sagas.errors import InfrastructureError, Rejected, Unavailable, Unequipped, UsageError
from sagas.settings.masking import remember_settings
from sagas.text.author_errors import attribute_of
from sagas.text.author_values import named_error, reportable, text_of
from sagas.text.exact_json import decode_json, encode_json

HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats."""

LOST = "lost"
"""Error kind: the runner or its JVM was lost."""

RETRY_KIND = "again"
"""Error kind: nothing was done; send the run to a new runner."""


class TaskCancelled(Exception):
    """The run was cancelled by the worker."""


class SourcesChanged(Exception):
    """The sources of jobs have changed since they were imported; only a new process runs the new code."""


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line."""
    return encode_json(message, default=str) + b"\n"


def decode_message(line: bytes) -> dict[str, Any]:
    """Raises ValueError if the line is not a message."""
    message = decode_json(line)
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def settings_to_json(settings: SparkSettings) -> dict[str, Any]:
    """The settings as JSON, which may have passwords: only for the pipe, never for a command line or a log."""
    return settings.model_dump(mode="json")


def settings_from_json(data: Mapping[str, Any]) -> SparkSettings:
    remember_settings(data)
    return SparkSettings.model_validate(data)


def error_to_json(error: BaseException) -> dict[str, Any]:
    """The errors of the contract keep their kind; any other error is reported as a bug of the runner."""
    match error:
        case JobFailed():
            return {"kind": "job", "message": _message(error), "details": reportable(attribute_of(error, "details"))}
        case Unequipped():
            return {"kind": "unequipped", "message": _message(error), "help": attribute_of(error, "help")}
        case UsageError():
            return {"kind": "usage", "message": _message(error), "help": attribute_of(error, "help")}
        case Rejected():
            return {
                "kind": "rejected",
                "message": _message(error),
                "details": reportable(attribute_of(error, "details")),
            }
        case RunnerLost():
            return {"kind": LOST, "message": text_of(error), "memory": error.memory}
        case Unavailable():
            return {"kind": "unavailable", "message": text_of(error)}
        case InfrastructureError():
            return {"kind": "infrastructure", "message": text_of(error)}
        case TaskCancelled():
            return {"kind": "cancelled", "message": "the run was cancelled"}
        case SourcesChanged():
            return {"kind": RETRY_KIND, "message": "the sources of jobs have changed"}
        case _:
            return {"kind": "infrastructure", "message": named_error(error)}


def _message(error: BaseException) -> str:
    return text_of(attribute_of(error, "message", error))


def error_from_json(data: Mapping[str, Any]) -> Exception:
    """The error to raise in the worker."""
    message = data["message"]
    match data["kind"]:
        case "job":
            return JobFailed(message, data["details"])
        case "unequipped":
            return Unequipped(message, help=data["help"])
        case "usage":
            return UsageError(message, help=data["help"])
        case "rejected":
            return Rejected(message, **data["details"])
        case "lost":
            return RunnerLost(message, memory=data["memory"])
        case "unavailable":
            return Unavailable(message)
        case _:
            return InfrastructureError(message)
