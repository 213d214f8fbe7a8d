"""What a Spark job says when it fails; the rest is `sagas.errors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.errors import Infrastructure, UsageError


class JobFailed(Exception):
    """The job itself is wrong, or its rows are: definite, and nothing is visible. One sentence.

    ``details`` are JSON values for people: the place in the user's file, the last lines of a program's output.
    """

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = dict(details or {})


class RunnerLost(Infrastructure):
    """The process that ran the job, or its JVM, has ended. ``memory``: because it needed more than it may use."""

    def __init__(self, message: str, *, memory: bool = False) -> None:
        super().__init__(message)
        self.memory = memory


class Unequipped(UsageError):
    """This machine lacks a program or a package that Spark needs; another one may have it."""
