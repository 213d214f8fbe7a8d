"""Errors of Spark jobs, and the translation of what Spark raises into one message; the rest is in `sagas.errors`."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sagas.errors import InfrastructureError, Unavailable, UsageError
from sagas.text.author_errors import make_ordinary
from sagas.text.author_values import named_error, text_of


class JobFailed(Exception):
    """A definite failure of the job or its rows: nothing is visible, and another attempt fails too.

    ``details`` are JSON values for operators: the location in the user's file, the last lines of a program's output.
    """

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = dict(details or {})


class RunnerLost(InfrastructureError):
    """The runner process of the job, or its JVM, has ended. ``memory``: it exceeded its memory limit."""

    def __init__(self, message: str, *, memory: bool = False) -> None:
        super().__init__(message)
        self.memory = memory


class UnreadableInput(UsageError):
    """An input has a file, a type or a value that Spark cannot read; another attempt would read the same."""


# Translation of a failure into one message: no query plan, no traceback, but the line of the user's own file.
MAX_MESSAGE_LENGTH = 500
"""Maximum length of a message, in characters."""

_DISK_FULL = ("No space left on device", "Disk quota exceeded")
_PERMISSION_DENIED = (
    "Permission denied",
    "AccessDenied",
    "Mkdirs failed to create",
    "Read-only file system",
    "Not a directory",
)
_OUT_OF_MEMORY = ("SparkOutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "java.lang.OutOfMemoryError")
_CONNECTION_LOST = (
    "Py4JNetworkError",
    "Answer from Java side is empty",
    "An error occurred while trying to connect to the Java server",
    "SparkContext was shut down",
    "stopped SparkContext",
    "StatusCode.UNAVAILABLE",
    "SESSION_CLOSED",
    "INVALID_HANDLE",
)
"""Spark itself is gone: its JVM, its context, or the session on the Connect server."""

_INTERRUPTED = (
    "ExecutorLostFailure",
    "Executor heartbeat timed out",
    "FetchFailedException",
    "cancelled as part of",
    "OPERATION_CANCELED",
)
"""Spark has exhausted its own retries and failed the job, or the job was cancelled."""

_UNREADABLE_FILE = (
    "MALFORMED_RECORD_IN_PARSING",
    "in CSV header",
    "CSV header does not conform to the schema",
    "CANNOT_PARSE_JSON_FIELD",
    "PARQUET_TYPE_ILLEGAL",
    "UNSUPPORTED_TIME_TYPE",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH",
    "DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION",
    "MalformedInputException",
    "is not a Parquet file",
)
"""A file that the job reads itself has content that Spark cannot read, however often it tries."""

_NEVER_CLASSES = ("0A", "21", "22", "42", "54")
"""Classes of SQLSTATE: a statement that cannot run, or a value that it cannot take. The inputs are frozen."""

_SQLSTATE = re.compile(r"\bSQLSTATE: ([0-9A-Z]{5})\b")
"""The SQLSTATE at the end of each message of Spark, also of errors for which PySpark has no class."""

_PATH_NOT_FOUND = "42K03"
"""SQLSTATE of a file that the job reads itself, and that may arrive."""

_EXCEPTION_PREFIX = re.compile(r"^(org\.apache\.spark\.|java\.(lang|io|util)\.|scala\.)?[\w.$]*(Exception|Error): ")
_ERROR_LINE = re.compile(r"^\s*(?:Caused by: )?([\w.$]*(?:Exception|Error)[\w.$]*): (.+)")


def to_job_error(
    error: BaseException, what: str, folders: Sequence[str] = ()
) -> JobFailed | UsageError | InfrastructureError:
    """Translate an exception of a job. ``what`` failed, for example ``the job shop.jobs:facts``; ``folders`` hold the
    user's files.

    UsageError if no attempt can succeed; InfrastructureError if another one may; Unavailable, which says nothing about
    the job, if the JVM, the context or the session was lost.
    """
    make_ordinary(error)
    text = _chain_text(error)
    if _is_spark_error(error) and any(phrase in text for phrase in _CONNECTION_LOST):
        return Unavailable(f"{what} was interrupted: {error_message(error)}")
    if _is_spark_error(error) and any(phrase in text for phrase in _INTERRUPTED):
        return InfrastructureError(f"{what} was interrupted: {error_message(error)}")
    if any(phrase in text for phrase in _DISK_FULL):
        return JobFailed(f"{what} could not write: the disk is full; free some space")
    if _is_spark_error(error) and any(phrase in text for phrase in _OUT_OF_MEMORY):
        return JobFailed(f"{what} ran out of memory; raise `memory` under [spark] or use more partitions")
    if any(phrase in text for phrase in _PERMISSION_DENIED) and _is_write_error(text):
        return JobFailed(f"{what} could not write to the stage area: {error_message(error)}")
    if _is_spark_error(error) and any(phrase in text for phrase in _UNREADABLE_FILE):
        return UnreadableInput(
            f"{what} cannot read a file: {_file_problem(error, text)}; correct the file or the schema"
        )
    message = f"{what} failed: {error_message(error)}"
    location = user_code_location(error, folders)
    if location is not None:
        path, number, line = location
        message += f" ({path}, line {number}: {line})"
    if _cannot_heal(error):
        return UsageError(message)
    details: dict[str, Any] = {"error": type(error).__name__}
    condition = getattr(error, "getCondition", lambda: None)()
    if condition:
        details["condition"] = condition
    if location is not None:
        details["file"], details["line"], _ = location
    return JobFailed(message, details)


def to_disk_error(error: OSError, what: str) -> JobFailed | None:
    """JobFailed for what only an operator can repair: a disk that is full or not writable. None for other errors."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JobFailed(f"{what}: the disk is full; free some space")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
        return JobFailed(f"{what}: {error_message(error)}")
    return None


def error_message(error: BaseException) -> str:
    """The essential part of an error's message, on one line."""
    text = _python_worker_error(error) or _EXCEPTION_PREFIX.sub("", _spark_message(error).strip())
    text = " ".join(text.split())
    if len(text) > MAX_MESSAGE_LENGTH:
        text = text[:MAX_MESSAGE_LENGTH].rstrip() + " …"
    name = type(error).__name__
    if _is_spark_error(error):
        return text.rstrip(".") or name
    return f"{name}: {text}" if text else name


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def last_error_line(output: str) -> str:
    """The last line of a program's output that names an exception, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR_LINE.match(line)]
    return (named or lines or ["it wrote no output"])[-1][:MAX_MESSAGE_LENGTH]


def user_code_location(error: BaseException, folders: Sequence[str]) -> tuple[str, int, str] | None:
    """The innermost traceback line in the user's own files: shortened path, line number, text."""
    roots = [Path(folder).resolve() for folder in folders]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if "site-packages" in path.parts or "saga_spark" in path.parts:
            continue
        for root in roots:
            if path.resolve().is_relative_to(root):
                return str(path.resolve().relative_to(root)), frame.lineno or 0, (frame.line or "").strip()
    return None


def _spark_message(error: BaseException) -> str:
    """Spark's own message, up to where its query plan begins."""
    get = getattr(error, "getMessage", None)
    text = (get() if get is not None else None) or text_of(error)
    java = getattr(error, "java_exception", None)
    if java is not None and get is None:
        text = str(java.getMessage() or java.toString())
    text = text.removeprefix("[None] ").split(";\n")[0].split("\nJVM stacktrace:")[0].split("\n\nDriver stacktrace:")[0]
    lost_task = re.search(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^)]*\): (.+)", text, re.S)
    if lost_task is not None:
        text = lost_task[1].split("\n\tat ")[0]
        causes = re.findall(r"Caused by: (.+)", str(error))
        text = causes[-1] if causes and "TASK_WRITE_FAILED" in text else text
    return text.split("\n\tat ")[0]


def _python_worker_error(error: BaseException) -> str | None:
    """Return what a Python function raised in one of Spark's Python workers: the last line of its traceback."""
    text = str(error)
    start = text.rfind("Traceback (most recent call last):")
    if start < 0 or not _is_spark_error(error):
        return None
    for line in text[start:].splitlines()[1:]:
        if line and not line.startswith((" ", "\t")):
            return line
    return None


def _file_problem(error: BaseException, text: str) -> str:
    """The file, if Spark names it, and each cause: the record, the value."""
    file = re.search(r"while reading file (\S+?)\.?(?:\s|$)", text)
    causes = [_EXCEPTION_PREFIX.sub("", cause) for cause in re.findall(r"Caused by: (.+)", text)]
    problem = ": ".join(dict.fromkeys(" ".join(cause.split()).rstrip(".") for cause in causes)) or error_message(error)
    problem = problem if len(problem) <= MAX_MESSAGE_LENGTH else problem[:MAX_MESSAGE_LENGTH].rstrip() + " …"
    return f"{file[1]}: {problem}" if file else problem


def _chain_text(error: BaseException) -> str:
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        texts.append(named_error(seen))
        java = getattr(seen, "_origin", None) or getattr(seen, "java_exception", None)
        while java is not None:
            texts.append(str(java.toString()))
            java = java.getCause()
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)


def _is_write_error(text: str) -> bool:
    return any(phrase in text for phrase in ("_temporary", "Mkdirs failed", "TASK_WRITE_FAILED", "commit", "stage"))


def _cannot_heal(error: BaseException) -> bool:
    match = _SQLSTATE.search(str(error)) if _is_spark_error(error) else None
    return match is not None and match[1] != _PATH_NOT_FOUND and match[1][:2] in _NEVER_CLASSES


def _is_spark_error(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")
