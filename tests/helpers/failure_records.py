"""A log handler that keeps what must not be logged for hostile input."""

from __future__ import annotations

import logging


class FailureRecords(logging.Handler):
    """Keeps the messages of records with a traceback, and of errors."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.bad.append(record.getMessage())
