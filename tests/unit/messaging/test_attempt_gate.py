"""Attempts that run alone: one that has ended its process more often does not hold back the others."""

from __future__ import annotations

import asyncio
import time

import pytest

from saga_activities.concurrency import Backoff
from saga_workers.trigger import attempt_gate
from saga_workers.trigger.attempt_gate import AttemptGate


class Reader:
    """A member that has received its partitions when it is made."""

    def __init__(self) -> None:
        self.assigned_at: float | None = time.monotonic()

    async def flush(self) -> None: ...


async def test_the_one_with_fewer_ends_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a record that another reader had in hand would wait behind the next end of the process."""
    monkeypatch.setattr(attempt_gate, "_BACKOFF", Backoff(0.1, 1.6))
    gate, order = AttemptGate(), list[str]()
    gate.members.append(Reader())

    async def attempt(name: str, ended: int) -> None:
        async with gate.alone(ended, timeout=60.0):
            order.append(name)

    poison = asyncio.create_task(attempt("poison", 3))
    await asyncio.sleep(0)
    await asyncio.gather(poison, attempt("in hand", 1))
    assert order == ["in hand", "poison"]
