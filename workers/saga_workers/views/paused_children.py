"""Nested sagas that are paused while their parents wait for them. No saga reports that to its parent."""

from __future__ import annotations

import asyncio

from temporalio.service import RPCError

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.views.answering import Workers
from saga_workers.views.saga_view import read_view
from sagas.errors import UsageError
from sagas.protocol.saga_view import FINAL_STATES, SagaView

_MOST = 10
"""Nested sagas that are looked at for one saga."""

_DEEPEST = 5
"""Levels of nested sagas that are looked at below one saga."""


class PausedChildren:
    """The nested sagas that the sagas of one command wait for; each is asked once."""

    def __init__(self, locator: Locator, workers: Workers) -> None:
        self._locator = locator
        self._workers = workers
        self._views: dict[str, asyncio.Task[SagaView | None]] = {}

    async def reasons(self, view: SagaView) -> list[str]:
        """The paused sagas below this one for which it waits, each with the command that ends the pause."""
        return [f"{step} waits: {paused}" for step, paused in await self._below(view, _DEEPEST)]

    async def _below(self, view: SagaView, levels: int) -> list[tuple[str, str]]:
        """The steps that wait, each with a paused saga."""
        if view.state in FINAL_STATES or not levels:
            return []
        paused: list[tuple[str, str]] = []
        for child in [child for child in view.children if child.state not in FINAL_STATES][:_MOST]:
            nested = await self._view(child.id)
            if nested is None or nested.state in FINAL_STATES:
                continue
            if nested.pause_text is not None:
                what = f"the nested saga {nested.id} is {nested.pause_text}; `{nested.resume_command}` ends it"
                paused.append((child.step, what))
            else:
                paused += [(child.step, what) for _, what in await self._below(nested, levels - 1)]
        return paused

    async def _view(self, saga_id: str) -> SagaView | None:
        if saga_id not in self._views:
            self._views[saga_id] = asyncio.create_task(self._read(saga_id))
        return await self._views[saga_id]

    async def _read(self, saga_id: str) -> SagaView | None:
        try:
            return await read_view(self._locator, saga_id, workers=self._workers)
        except (UsageError, LedgerUnavailable, RPCError):
            return None  # it is listed itself, with the reason
