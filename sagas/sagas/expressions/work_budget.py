"""The evaluation steps for all work on one input: its validation, and the expressions that its start evaluates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sagas.errors import UsageError
from sagas.input_limits import MAX_CHECK_STEPS

_PAUSE_STEPS = 250
"""Steps between two pauses of a check, half a millisecond."""


class TooComplex(UsageError):
    """The input is too large for the schema: make it smaller, or simplify the schema under `input`."""


class WorkBudget:
    """A number of evaluation steps; they are used up when ``remaining`` is below zero.

    ``pause`` is called between two portions of steps.
    """

    __slots__ = ("_pause", "_stop_at", "remaining")

    def __init__(self, steps: int = MAX_CHECK_STEPS, pause: Callable[[], None] | None = None) -> None:
        self.remaining = steps
        self._pause = pause
        self._stop_at = self._next_stop()

    @property
    def is_spent(self) -> bool:
        """True if the work was stopped because no steps remained."""
        return self.remaining < 0

    def give_up(self) -> None:
        """Stop the work at its next step, which may be made in another thread."""
        self.remaining = -1

    def charge(self, steps: int) -> None:
        """Count steps. Raises TooComplex when they are used up."""
        self.remaining -= steps
        if self.remaining < self._stop_at:
            if self.remaining < 0:
                raise TooComplex
            if self._pause is not None:
                self._pause()
            self._stop_at = self._next_stop()

    def _next_stop(self) -> int:
        return 0 if self._pause is None else max(self.remaining - _PAUSE_STEPS, 0)


_current: ContextVar[WorkBudget] = ContextVar("work_budget")


def charge(steps: int = 1) -> None:
    """Count work on the current input; raises TooComplex when it is too much."""
    budget = _current.get(None)
    if budget is not None:
        budget.charge(steps)


def current_budget() -> WorkBudget | None:
    """The budget of :func:`bounded`; None outside of it."""
    return _current.get(None)


@contextmanager
def bounded(budget: WorkBudget | int = MAX_CHECK_STEPS) -> Iterator[WorkBudget]:
    """A context in which all work counts as work on one input. Inside another one the budget of the outer is shared."""
    if (outer := _current.get(None)) is not None:
        yield outer
        return
    own = WorkBudget(budget) if isinstance(budget, int) else budget
    token = _current.set(own)
    try:
        yield own
    finally:
        _current.reset(token)
