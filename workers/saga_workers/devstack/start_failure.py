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
    r"^(?:initdb: |[\d-]+ [\d:.]+ \w+ \[\d+\] |[\dT:,.-]+ )?(?:(?i:error|fatal|panic):|ERROR|FATAL|PANIC|✖)\s+"
)
"""The prefix of an error line: of a CLI, PostgreSQL, or Kafka."""

_EXCEPTION = re.compile(r'^(?:Exception in thread "[^"]*" |Caused by: )*(?:[\w$]+\.)+[\w$]*(?:Exception|Error)(?:: |$)')
_FRAME = re.compile(r"^(?:at |\.\.\. \d+ (?:more|common frames))")


def full_disk(folder: Path) -> str | None:
    """A message if there is no space left for ``folder``; else None."""
    return f"no space is left on the disk of {folder}" if shutil.disk_usage(folder).free < _LEAST_FREE else None


def cause(output: str) -> str:
    """The most informative line: a lack of space, else the innermost exception of the last error, else the last line.

    A lack of space wins wherever it occurs, because the output of later attempts only follows from it.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not _FRAME.match(line)]
    if no_space := [line for line in lines if any(text in line.lower() for text in _NO_SPACE)]:
        return _message(no_space[-1])
    errors = [index for index, line in enumerate(lines) if _LEVEL.match(line)]
    if not errors:
        return _message(lines[-1]) if lines else "it printed nothing"
    chain = [lines[errors[-1]]]
    for line in lines[errors[-1] + 1 :]:
        if not _EXCEPTION.match(line):
            break
        chain.append(line)
    return _message(chain[-1])


def _message(line: str) -> str:
    text = _LEVEL.sub("", line, count=1)
    return (_EXCEPTION.sub("", text, count=1) or text).rstrip(".")
