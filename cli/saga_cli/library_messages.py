"""Prints what libraries log or warn about during a command, one line each in the form of our own messages.

Without a handler Python prints such records as the library wrote them, with tracebacks. Long-running processes set up a
log of their own (`saga_workers.runtime.logs`), which takes precedence.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

from saga_cli.context import global_options
from saga_cli.output import warn

_LARGE_PAYLOAD = "[TMPRL1103]"
"""The beginning of a warning of Temporal's SDK about each payload above 512 KiB. Those that are too large are refused
before, in words of our own."""


def shorten_library_messages() -> None:
    """Print what libraries warn about as `warning: …` on standard error; with `--debug` with their tracebacks."""
    logging.lastResort = _LineHandler(logging.WARNING)
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    warn(f"warning: {category.__name__}: {message}")


class _LineHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        debug = global_options().debug
        if message.startswith(_LARGE_PAYLOAD) and not debug:
            return
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            message = f"{message.splitlines()[0]}: {type(error).__name__}: {error}".strip()
        warn(f"warning: {record.name}: {message}")
        if debug and record.exc_info:
            warn(*logging.Formatter().formatException(record.exc_info).splitlines())
