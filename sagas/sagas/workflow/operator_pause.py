"""A saga that an operator has paused: nothing begins, in either direction, until it is resumed.

The machine knows nothing of it. Its commands that begin something are held back; for the machine that is in flight, as
a call is that waits for a worker. What is in flight already goes on, with its retries, and so do timers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sagas.protocol.messages import AcquireLocks, Call, CancelCall, CancelSaga, Command, StartSaga, UndoSaga
from sagas.protocol.saga_view import PauseView, SagaView

BEGINS = Call | StartSaga | UndoSaga | AcquireLocks
"""The commands that begin something."""


class OperatorPause:
    """The pause of one run. ``state`` is a :class:`PauseView` as JSON, without what is held; None: it is not paused."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self.state = state
        self._held: list[Command] = []

    def begin(self, state: Mapping[str, Any]) -> None:
        """Hold back commands from now on. A pause under way stays as it is."""
        self.state = self.state or state

    def holds(self, command: Command) -> bool:
        """Whether the command is held back; then :meth:`end` returns it."""
        if self.state is None:
            return False
        # The cancel of something that is held back follows it.
        if isinstance(command, BEGINS) or (
            isinstance(command, CancelCall | CancelSaga)
            and any(one.id == command.id for one in self._held if isinstance(one, Call | StartSaga))
        ):
            self._held.append(command)
            return True
        return False

    def forget(self) -> None:
        """The machine issues again what is held back."""
        self._held.clear()

    def end(self) -> Sequence[Command]:
        """Hold back nothing any more; returns what was held, in order."""
        self.state, held = None, tuple(self._held)
        self._held.clear()
        return held

    def shown_in(self, view: SagaView) -> SagaView:
        """The view with the pause, if there is one."""
        if self.state is None:
            return view
        held = tuple(one.entry for one in self._held if isinstance(one, Call | StartSaga | UndoSaga))
        return replace(view, paused=PauseView(**self.state, held=held))
