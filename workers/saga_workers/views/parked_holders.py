"""Sagas that wait for rows or locks of another saga: finds out whether that one is parked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from temporalio.service import RPCError

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.temporal.visible_states import visible_state
from saga_workers.views.answering import Workers
from saga_workers.views.saga_view import read_view
from sagas.errors import UsageError
from sagas.protocol.saga_view import FINAL_STATES, ErrorView, SagaView
from sagas.protocol.waits import parked_hint

_TIMEOUT = 1.0
"""Seconds in which Temporal has to say whether a holder is parked: an attempt does not wait longer for its message."""

_MOST = 10
"""Holders that are looked at for one saga."""


async def is_parked(locator: Locator, saga_id: str) -> bool:
    """Return whether the saga waits for an operator; False also if that cannot be found out.

    Its search attributes say it, except for a saga that a nested one blocks: such a saga has an error, and is queried.
    """
    locator = locator.within_temporal()
    try:
        async with asyncio.timeout(_TIMEOUT):
            run = (await locator.locate(saga_id)).open_run
            if run is None or visible_state(run.run) == "PARKED":
                return run is not None
            return "SagaStep" in run.run.attributes and (await read_view(locator, saga_id)).waits_for_a_person
    except (RPCError, UsageError, TimeoutError):
        return False  # only a message is shorter: the attempt itself needs no answer


class ParkedHolders:
    """The holders that the sagas of one command wait for; each is asked once."""

    def __init__(self, locator: Locator, workers: Workers) -> None:
        self._locator = locator
        self._workers = workers
        self._hints: dict[str, asyncio.Task[str | None]] = {}

    async def reasons(self, view: SagaView, shown: Iterable[str]) -> list[str]:
        """The parked sagas that this one waits for, as far as the messages ``shown`` do not say it."""
        if view.state in FINAL_STATES:
            return []
        said = tuple(shown)
        owners = list(dict.fromkeys(_owners(view)))[:_MOST]
        hints = [(owner, await self._hint(owner)) for owner in owners]
        return [
            f"it waits for what {owner} has; {hint}"
            for owner, hint in hints
            if hint is not None and not any(hint in text for text in said)
        ]

    async def _hint(self, owner: str) -> str | None:
        if owner not in self._hints:
            self._hints[owner] = asyncio.create_task(self._look(owner))
        return await self._hints[owner]

    async def _look(self, owner: str) -> str | None:
        try:
            view = await read_view(self._locator, owner, workers=self._workers)
        except (UsageError, LedgerUnavailable):
            return None  # its rows or locks are left over: `saga reconcile` names them
        return parked_hint(owner) if view.waits_for_a_person else None


def _owners(view: SagaView) -> Iterator[str]:
    """The ids of the sagas that have the locks or rows that a saga waits for."""
    if view.locks is not None and view.locks.state == "WAITING":
        yield from (blocker.owner for blocker in view.locks.waits_for)
    for error in _errors(view):
        details = error.details or {}
        if "row" in details and isinstance(details.get("owner"), str):
            yield details["owner"]


def wait_messages(view: SagaView) -> list[str]:
    """The part of a saga's view about its waits."""
    return [view.lock_wait or "", *(error.message or "" for error in _errors(view))]


def _errors(view: SagaView) -> Iterator[ErrorView]:
    """The errors of operations that will be attempted again."""
    for step in view.steps:
        for operation in (step, step.compensation):
            if operation is not None and operation.state == "RUNNING" and operation.error is not None:
                yield operation.error
