"""How long to wait before trying again."""

from __future__ import annotations

import time


class Pauses:
    """Pauses that double from ``first`` to ``longest`` seconds; after ``longest`` × 2 quiet seconds they begin anew."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._next, self._last = first, 0.0

    def next(self) -> float:
        now = time.monotonic()
        if now - self._last > 2 * self._longest:
            self._next = self._first
        pause, self._next = self._next, min(self._longest, self._next * 2)
        self._last = now
        return pause
