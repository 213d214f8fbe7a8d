"""Sagas that hold something in a database of the project, while Temporal has no run of them: it was deleted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from saga_workers.location.locator import Locator
from saga_workers.location.traces import MAX_SAGAS, read_holdings
from sagas.protocol.saga_view import FINAL_STATES
from sagas.settings import Settings
from sagas.text.shell import saga_command

_CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class LostSaga:
    """A saga without a run; ``holds`` is what it has in the databases, in words. ``saga``: its name, if known."""

    saga_id: str
    holds: tuple[str, ...]
    saga: str | None = None

    @property
    def sentence(self) -> str:
        return f"Temporal has no run of it any more, and it has {', '.join(self.holds)}"

    @property
    def command(self) -> str:
        return saga_command("resume", self.saga_id)


async def find_lost(locator: Locator, settings: Settings, saga_id: str | None = None) -> list[LostSaga]:
    """The sagas that hold something and have no run. Raises SagaError, RPCError."""
    held = await read_holdings(settings, saga_id)
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def look(id: str) -> LostSaga | None:
        async with gate:
            location = await locator.locate(id)
        if location.kind == "unknown":
            return LostSaga(id, tuple(held[id]))
        if location.row is not None and location.kind == "ended" and location.row.view.state not in FINAL_STATES:
            return LostSaga(id, tuple(held[id]), location.row.view.saga)
        return None

    lost = await asyncio.gather(*map(look, list(held)[:MAX_SAGAS]))
    return [one for one in lost if one is not None]
