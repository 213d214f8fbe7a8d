"""Finds the cause of a failed start in a service's output, without stack frames and consequential errors."""

from __future__ import annotations

import os
import re
import shutil
from errno import EDQUOT, ENOSPC
from pathlib import Path

_LEAST_FREE = 1_000_000
"""Free bytes; with less, every service fails, some with misleading errors (a mapped file: SIGBUS)."""

_NO_SPACE = tuple(text.lower() for text in (os.strerror(ENOSPC), os.strerror(EDQUOT), "disk is full"))

_LEVEL = re.compile(
    r"^(?:initdb: |[\d-]+ [\d:.]+ \w+ \[\d+\] |[\dT:,.-]+Z? )?(?:(?i:error|fatal|panic):|ERROR|FATAL|PANIC|✖)\s+"
)
"""The prefix of an error line: of a CLI, PostgreSQL, or Kafka."""

_OWN_LOG = re.compile(r"^[\dT:.-]+Z (DEBUG|INFO|WARNING) [\w.]+ ")
"""The prefix of a line that a process of the project logs without an error."""

_ATTEMPT = "attempt begins, of a record"
"""In the line that names the record before a handler that may end the process."""

_EXCEPTION = re.compile(r'^(?:Exception in thread "[^"]*" |Caused by: )*(?:[\w$]+\.)+[\w$]*(?:Exception|Error)(?:: |$)')
_FRAME = re.compile(r"^(?:at |\.\.\. \d+ (?:more|common frames))")


def full_disk(folder: Path) -> str | None:
    """A message if there is no space left for ``folder``; else None."""
    return f"no space is left on the disk of {folder}" if shutil.disk_usage(folder).free < _LEAST_FREE else None


def cause(output: str) -> str:
    """The most informative line: a lack of space, else the innermost exception of the last error, else the last line.

    A lack of space wins wherever it occurs, because the output of later attempts only follows from it. Of a log without
    an error it is the last warning, or the last record that may have ended the process.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not _FRAME.match(line)]
    if no_space := [line for line in lines if any(text in line.lower() for text in _NO_SPACE)]:
        return _message(no_space[-1])
    errors = [index for index, line in enumerate(lines) if _LEVEL.match(line)]
    if not errors:
        return _without_error(lines)
    chain = [lines[errors[-1]]]
    for line in lines[errors[-1] + 1 :]:
        if not _EXCEPTION.match(line):
            break
        chain.append(line)
    return _message(chain[-1])


def _without_error(lines: list[str]) -> str:
    if not lines:
        return "it printed nothing"
    if not _OWN_LOG.match(lines[-1]):
        return _message(lines[-1])
    telling = [line for line in lines if _is_warning(line) or _ATTEMPT in line]
    return _OWN_LOG.sub("", telling[-1]) if telling else "it ended without an error message"


def _is_warning(line: str) -> bool:
    match = _OWN_LOG.match(line)
    return match is not None and match[1] == "WARNING"


def _message(line: str) -> str:
    text = _LEVEL.sub("", line, count=1)
    return (_EXCEPTION.sub("", text, count=1) or text).rstrip(".")
