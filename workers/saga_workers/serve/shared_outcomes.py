"""Waits for the ends of sagas that share a bulk workflow: one query to the ledger for all who wait for one of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.ledger.run_ledger import LedgerUnavailable, RunLedger
from saga_workers.temporal.run_results import wait_for_result
from sagas.protocol.saga_view import FINAL_STATES, SagaView

_FIRST_INTERVAL = 0.1
_LONGEST_INTERVAL = 1.0
"""Seconds between two queries. A saga may end, and be recorded, long before the last one of its workflow."""


@dataclass(slots=True)
class _Watch:
    """One bulk workflow. ``ends`` has a future for each saga that somebody waits for, ``callers`` how many wait."""

    ends: dict[str, asyncio.Future[SagaView | None]] = field(default_factory=dict)
    callers: int = 0
    task: asyncio.Task[None] | None = None


class SharedOutcomes:
    """The outcomes of the sagas of bulk workflows."""

    def __init__(self, temporal: Temporal, ledger: RunLedger) -> None:
        self._temporal = temporal
        self._ledger = ledger
        self._watches: dict[str, _Watch] = {}

    async def wait(self, bulk_id: str, saga_id: str) -> SagaView | None:
        """The view of a saga that has ended; None if its bulk workflow has ended, and the ledger has no end of it.

        Then it has left, and goes on as a workflow of its own.
        """
        watch = self._watches.get(bulk_id)
        if watch is None:
            watch = self._watches[bulk_id] = _Watch()
            watch.task = asyncio.create_task(self._watch(bulk_id, watch))
        if saga_id not in watch.ends:
            watch.ends[saga_id] = asyncio.get_running_loop().create_future()
        watch.callers += 1
        try:
            # Several callers may wait for one saga, and each gives up when it wants.
            return await asyncio.shield(watch.ends[saga_id])
        finally:
            watch.callers -= 1
            if watch.callers == 0:
                self._remove(bulk_id, watch)
                if watch.task is not None:
                    watch.task.cancel()

    def _remove(self, bulk_id: str, watch: _Watch) -> None:
        if self._watches.get(bulk_id) is watch:
            del self._watches[bulk_id]

    async def _watch(self, bulk_id: str, watch: _Watch) -> None:
        result = self._follow(bulk_id)
        interval = _FIRST_INTERVAL
        try:
            while True:
                await asyncio.wait({result}, timeout=interval)
                interval = min(2 * interval, _LONGEST_INTERVAL)
                closed = result.done() and _is_closed(result)
                if result.done() and not closed:
                    await asyncio.sleep(interval)
                    result = self._follow(bulk_id)
                waiting = [id for id, end in watch.ends.items() if not end.done()]
                try:
                    rows = await self._ledger.find_all(waiting)
                except LedgerUnavailable:
                    await asyncio.sleep(interval)
                    continue
                for id, row in rows.items():
                    if row.view.state in FINAL_STATES:
                        watch.ends[id].set_result(row.view)
                if closed:
                    # Later callers get another watch.
                    self._remove(bulk_id, watch)
                    for id in waiting:
                        if not watch.ends[id].done():
                            watch.ends[id].set_result(None)
                    if all(end.done() for end in watch.ends.values()):
                        return
        except Exception as error:  # noqa: BLE001 - each caller raises it
            self._remove(bulk_id, watch)
            for end in watch.ends.values():
                if not end.done():
                    end.set_exception(error)
        finally:
            result.cancel()

    def _follow(self, bulk_id: str) -> asyncio.Future[Any]:
        return asyncio.ensure_future(wait_for_result(self._temporal.get_workflow_handle(bulk_id)))


def _is_closed(result: asyncio.Future[Any]) -> bool:
    """Return whether the workflow has ended, however it did; False if Temporal does not answer."""
    error = result.exception()
    return not isinstance(error, RPCError) or error.status is RPCStatusCode.NOT_FOUND
