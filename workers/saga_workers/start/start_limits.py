"""Limits on the starting of rows: their rate, the sagas that run at once, failures, and sizes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from saga_workers.start.start_gate import StartGate
from saga_workers.start.start_requests import StartRequest

MAX_BULK_INPUT = 1536 * 1024
"""Bytes of JSON of one saga's input in bulk execution: its state, with the results it keeps, has to fit into the start
of a workflow of its own."""

MAX_BULK_INPUTS = 1536 * 1024
"""Bytes of JSON of the inputs of one bulk workflow; Temporal's limit for a whole input is 2 MiB."""

MAX_SHARED_INPUTS = 1024 * 1024
"""Bytes of JSON of starts that arrive together and share a bulk workflow. One that is larger than half of it starts
alone."""

_BYTES_PER_STEP = 6


def shared_size(request: StartRequest, size: int) -> int:
    """The bytes for which a start of ``size`` bytes counts that shares a workflow: one whose input takes long to check
    counts as a larger one, so that the worker can check all inputs of a workflow as it checks one.
    """
    return max(size, _BYTES_PER_STEP * request.steps)


@dataclass(frozen=True, slots=True)
class StartLimits:
    """``rate``: starts per second (None: unlimited). ``concurrency``: how many sagas run at once.

    ``tolerated``: how many rows may fail (refused, or ended other than COMPLETED or PARKED) before starting stops.
    """

    rate: float | None = None
    concurrency: int = 50
    tolerated: int | None = None


class RateLimit:
    """Spreads starts over time: ``rate`` per second, or None. A pause is not made up for afterwards."""

    def __init__(self, rate: float | None) -> None:
        self._interval = 0.0 if rate is None else 1 / rate
        self._due = time.monotonic()

    async def wait(self, gate: StartGate, count: int = 1) -> None:
        """Wait until the next ``count`` sagas may start."""
        if not self._interval:
            return
        await gate.sleep(self._due - time.monotonic())
        if gate.paused:
            await gate.wait_open()
            self._due = max(self._due, time.monotonic())
        self._due += count * self._interval
