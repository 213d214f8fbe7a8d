"""The failing attempts of a saga that somebody waits for, and of the sagas nested in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sagas.errors import UsageError

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.protocol.saga_view import SagaView

_MOST_NESTED = 20
"""Nested sagas that are read at a time: each costs a query."""


@dataclass(frozen=True, slots=True)
class FailingCall:
    """A call of a step whose last attempt has failed. ``name`` is the step, or its undo or confirm."""

    saga_id: str
    name: str
    attempts: int | None
    text: str


async def running_below(locator: Locator, view: SagaView) -> list[SagaView]:
    """The views of sagas that are nested in this one, at any depth, and have not ended; the first of many."""
    from saga_workers.views.saga_view import read_view

    views: list[SagaView] = []
    waiting = _open_children(view)
    while waiting and len(views) < _MOST_NESTED:
        try:
            nested = await read_view(locator, waiting.pop(0))
        except UsageError:
            continue  # its run has not been started yet
        views.append(nested)
        waiting += _open_children(nested)
    return views


def failing_calls(view: SagaView) -> Iterator[FailingCall]:
    """The calls under way whose last attempt has failed."""
    from sagas.presentation.styled_text import attempt_text

    for step in view.steps:
        calls = {
            step.id: step,
            f"the undo of {step.id}": step.compensation,
            f"the confirm of {step.id}": step.confirmation,
        }
        for name, call in calls.items():
            if call is not None and call.state == "RUNNING" and call.error:
                yield FailingCall(view.id, name, call.attempts, attempt_text(call))


def _open_children(view: SagaView) -> list[str]:
    from sagas.protocol.saga_view import FINAL_STATES

    return [child.id for child in view.children if child.state not in FINAL_STATES]
