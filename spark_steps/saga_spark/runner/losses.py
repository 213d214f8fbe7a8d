"""Which runs were in runners that were lost, and what follows for their attempts.

A runner serves many runs, so its end says nothing about any of them, with one exception: a run that was alone in a
runner that ran out of memory needs too much itself. A run that was there together with others, or in several lost
runners in a row, gets a runner of its own: then the others are safe from it, and it is clear which one needs too much.
"""

from __future__ import annotations

from saga_spark.errors import RunnerLost
from sagas.errors import Infrastructure, Parked, Unavailable

APART_AFTER = 3
"""Lost runners in a row after which a run gets one of its own."""

GIVE_UP_AFTER = 10
"""Lost runners in a row after which only a person can go on. (A job may crash its process whenever it runs.)"""


class Losses:
    """What one worker remembers, by names of runs that stay the same from attempt to attempt."""

    def __init__(self) -> None:
        self._in_a_row: dict[str, int] = {}
        self._apart: set[str] = set()

    def apart(self, name: str) -> bool:
        """Does this run get a runner of its own?"""
        return name in self._apart

    def survived(self, name: str) -> None:
        """A runner has answered this run."""
        self._in_a_row.pop(name, None)
        self._apart.discard(name)

    def lost(self, name: str, error: RunnerLost, *, alone: bool) -> Infrastructure | Parked:
        """What the attempt of a run ends with whose runner was lost."""
        if error.memory and alone:
            return Infrastructure(str(error))  # the job needs too much: an attempt like any other
        count = self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        if error.memory or count >= APART_AFTER:
            self._apart.add(name)
        if count < GIVE_UP_AFTER:
            return Unavailable(str(error))
        self.survived(name)  # a person's retry begins anew
        return Parked(f"{count} Spark runners in a row were lost while they ran this; the last time: {error}")
