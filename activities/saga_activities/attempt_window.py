"""The last attempts that needed a connection, and how many of them have failed."""

from __future__ import annotations

from collections import deque


class AttemptWindow:
    """The attempts of the last ``seconds``, at least the last ``minimum`` and at most the last ``most``."""

    def __init__(self, seconds: float, minimum: int, most: int) -> None:
        self._seconds, self._minimum, self._most = seconds, minimum, most
        self._attempts: deque[tuple[float, bool]] = deque()
        self._failed = 0

    def add(self, at: float, *, failed: bool) -> None:
        """Add an attempt that has ended ``at`` this time."""
        self._attempts.append((at, failed))
        self._failed += failed
        while len(self._attempts) > self._minimum and self._is_over(self._attempts[0][0], at):
            self._failed -= self._attempts.popleft()[1]

    def _is_over(self, oldest: float, now: float) -> bool:
        return oldest < now - self._seconds or len(self._attempts) > self._most

    def failing(self, percent: int) -> tuple[int, int] | None:
        """The failed attempts and all of them, if at least this share has failed; None if not, or if they are few."""
        total = len(self._attempts)
        if total < self._minimum or self._failed * 100 < percent * total:
            return None
        return self._failed, total

    def clear(self) -> None:
        self._attempts.clear()
        self._failed = 0
