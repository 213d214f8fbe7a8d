"""A saga that an operator has paused: no call and no nested saga begins, in either direction, until it is resumed.

The machine knows only that the time does not count for its waits for other sagas. Its commands that begin something
are held back; for the machine that is in flight, as a call is that waits for a worker. What Temporal has already goes
on, with Temporal's retries, and so do timers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from temporalio import workflow

from sagas.definition.times import format_timestamp
from sagas.machine.machine import Machine
from sagas.protocol.messages import (
    AcquireLocks,
    Call,
    CancelCall,
    CancelSaga,
    Command,
    RollBackSaga,
    StartSaga,
    UndoSaga,
)
from sagas.protocol.outcomes import PAUSED
from sagas.protocol.saga_view import OperationView, PauseView, SagaView, StepView
from sagas.workflow.client_messages import who_and_reason
from sagas.workflow.waits import wait_until

_Row = TypeVar("_Row", StepView, OperationView)

BEGINS = Call | StartSaga | RollBackSaga | UndoSaga | AcquireLocks
"""The commands that begin something, and that a machine issues again."""

_HELD = Call | StartSaga | RollBackSaga | UndoSaga
"""A request for locks is not held back: others would wait for a lock that nobody takes."""


class OperatorPause:
    """The pause of one run. ``state`` is a :class:`PauseView` as JSON, without what is held, or None if not paused."""

    def __init__(self) -> None:
        self.state: Mapping[str, Any] | None = None
        self._held: list[Command] = []
        self._waiting: dict[str, str] = {}

    def begin(self, machine: Machine, request: Mapping[str, Any]) -> None:
        """Hold back commands from now on. A pause under way stays as it is."""
        if self.state is None:
            who, reason = _words(request)
            shown = machine.masked_words(reason) or None
            self.state = {"at": format_timestamp(workflow.time()), "who": who, "reason": shown}
            machine.note_pause("pause", workflow.time(), who, reason)

    def holds(self, command: Command) -> bool:
        """Return whether the command is held back; then :meth:`end` returns it."""
        if self.state is None:
            return False
        # The cancel of something that is held back follows it.
        if isinstance(command, _HELD) or (
            isinstance(command, CancelCall | CancelSaga)
            and any(held.id == command.id for held in self._held if isinstance(held, Call | StartSaga))
        ):
            self._held.append(command)
            return True
        return False

    async def wait(self, id: str, entry: str, unless: Callable[[], bool]) -> bool:
        """Wait with a command that was issued before the pause, and has not begun, until its end; False: no pause."""
        if self.state is None or unless():
            return False
        self._waiting[id] = entry
        try:
            await wait_until(lambda: self.state is None or unless())
        finally:
            del self._waiting[id]
        return True

    def forget(self) -> None:
        """The machine issues again what is held back."""
        self._held.clear()

    def end(self, machine: Machine, request: Mapping[str, Any]) -> Sequence[Command]:
        """Hold back nothing any more; returns what was held, in order, and the timers that go on."""
        timers = [] if self.state is None else machine.note_pause("resume", workflow.time(), *_words(request))
        self.state, held = None, tuple(self._held)
        self._held.clear()
        return (*held, *timers)

    def view(self) -> PauseView | None:
        """The pause, without what is held; None if not paused."""
        return None if self.state is None else PauseView(**self.state)

    def shown_in(self, view: SagaView) -> SagaView:
        """The view with the pause, if there is one."""
        if self.state is None or view.ended_at is not None:
            return view
        held = (*self._waiting.values(), *(command.entry for command in self._held if isinstance(command, _HELD)))
        steps = tuple(_without_earlier_pause(step) if step.id in held else step for step in view.steps)
        return replace(view, steps=steps, paused=PauseView(**self.state, held=held))


def _without_earlier_pause(step: StepView) -> StepView:
    """The row without a standing pause that has held it back before this one: nobody asks whether that has ended."""
    rows = {name: getattr(step, name) for name in ("compensation", "confirmation")}
    shown = {name: _without_pause(row) for name, row in rows.items() if row is not None}
    return replace(_without_pause(step), **shown)


def _without_pause(row: _Row) -> _Row:
    return replace(row, error=None) if row.error is not None and row.error.type == PAUSED else row


def not_paused_text(machine: Machine | None) -> str:
    """Why a saga cannot be resumed that nobody has paused, with the command that ends the pause for which it waits."""
    view = None if machine is None else machine.view()
    if view is None or view.paused is None:
        return "the saga is not paused"
    return f"the saga is not paused by itself, but {view.pause_text}; {view.resume_command} ends it"


def _words(request: Mapping[str, Any]) -> tuple[str, str]:
    who, reason = who_and_reason(request)
    return who or "unknown", reason or ""
