"""Counters of a batch whose rows are being started, and the gate that holds the starting up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Literal

from saga_workers.start.saga_starter import StartRequest

StopReason = Literal["asked", "failures", "cancelled", "taken over"]


@dataclass(frozen=True, slots=True)
class StartRow:
    """One saga to start. ``location`` names the row for messages."""

    location: str
    id: str
    request: StartRequest


@dataclass(frozen=True, slots=True)
class StartLimits:
    """``rate``: starts per second (None: unlimited). ``concurrency``: how many sagas run at once.

    ``tolerated``: how many rows may fail (refused, or ended other than COMPLETED or PARKED) before starting stops.
    """

    rate: float | None = None
    concurrency: int = 50
    tolerated: int | None = None


@dataclass(slots=True)
class Tally:
    """Counts of rows, updated as the sagas start and end.

    ``ended`` counts by state, whoever started the saga and when: a second run over the same file gives the same counts.
    """

    total: int
    started: int = 0
    existing: int = 0
    refused: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    stopped: StopReason | None = None

    @property
    def processed(self) -> int:
        return self.started + self.existing + self.refused

    @property
    def running(self) -> int:
        """Sagas that were started or found and whose end is not counted yet."""
        return self.started + self.existing - sum(self.ended.values())

    @property
    def not_started(self) -> int:
        return self.total - self.processed

    def count_ended(self, state: str, count: int = 1) -> None:
        self.ended[state] = self.ended.get(state, 0) + count

    @property
    def failures(self) -> int:
        return self.refused + sum(count for state, count in self.ended.items() if state not in ("COMPLETED", "PARKED"))


class StartGate:
    """Lets rows start, holds them up while it is paused, and ends the starting when it is stopped."""

    def __init__(self) -> None:
        self.why: StopReason | None = None
        self.paused = False
        self._stopped = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def stopped(self) -> bool:
        return self.why is not None

    def stop(self, why: StopReason) -> None:
        """End the starting; the first reason counts."""
        self.why = self.why or why
        self._stopped.set()
        self._open.set()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if paused and not self.stopped:
            self._open.clear()
        else:
            self._open.set()

    async def wait_stopped(self) -> None:
        await self._stopped.wait()

    async def wait_open(self) -> None:
        """Wait until it is neither paused nor, if it is stopped, to be waited for."""
        await self._open.wait()

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not after it has stopped."""
        if seconds > 0 and not self.stopped:
            await asyncio.wait({stopping := asyncio.ensure_future(self.wait_stopped())}, timeout=seconds)
            stopping.cancel()


class Pacer:
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
