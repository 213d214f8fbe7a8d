"""The record of who has seen the sensitive values of a saga, had them forgotten, or has operated it over HTTP."""

from __future__ import annotations

from dataclasses import replace

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from sagas.definition.times import read_timestamp
from sagas.protocol.access_view import AccessView
from sagas.protocol.saga_view import IMAGES_MISSING, ParkedView, SagaView
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten


def forgotten_text(access: AccessView, *, is_open: bool) -> str:
    """The reason why a saga cannot be undone whose values somebody has had forgotten.

    ``is_open``: the forget is not complete, so perhaps nothing was replaced.
    """
    who = shorten(printable_line(access.who))
    begun = "a forget of its values was begun" if is_open else "its values were forgotten"
    return f"{begun} at {access.at} by {who}, and an undo would need them"


async def with_accesses(locator: Locator, view: SagaView) -> SagaView:
    """The view with ``accesses``. Without an answer of the ledger it is as it was: the saga does not need it."""
    try:
        accesses = await locator.ledger.accesses(view.id)
        if not accesses:
            return view
        since = read_timestamp(view.started_at)
        # Only the newest accesses are listed, and the forget may be older.
        forgotten = await locator.ledger.begun_forgetting(view.id, since)
        is_open = forgotten is not None and await locator.ledger.is_forgetting(view.id, since)
    except LedgerUnavailable:
        return view
    view = replace(view, accesses=tuple(accesses))
    if forgotten is None:
        return view
    why = forgotten_text(forgotten, is_open=is_open)
    parked = tuple(_without_images(each, why) for each in view.parked)
    refusal = why if view.state == "COMPLETED" else None
    return replace(view, can_undo=False, undo_refusal=refusal, parked=parked)


def _without_images(parked: ParkedView, cause: str) -> ParkedView:
    """A parked operation with the cause of missing images. A retry of it could never succeed, and is not offered."""
    if IMAGES_MISSING not in parked.why:
        return parked
    why = f"{parked.why}: {cause}"
    commands = tuple(command for command in parked.commands if f" {parked.step} retry " not in command)
    decisions = tuple(decision for decision in parked.decisions if decision != "retry")
    return replace(parked, why=why, commands=commands, decisions=decisions)
