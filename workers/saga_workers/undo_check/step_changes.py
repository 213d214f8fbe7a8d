"""The steps whose effects change data that are compared: without a change, an undo has nothing to show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


class StepChanges:
    """Looks at the data before and after each effect of a run, until one of its step has changed something.

    ``read_data`` returns a value that is another after every change. ``unchanged``: the steps, as ``buy/charge``, that
    have had effects, none of which changed anything.
    """

    def __init__(self, read_data: Callable[[], Awaitable[Any]]) -> None:
        self._read_data = read_data
        self._before: Any = None
        self._changed: dict[str, bool] = {}

    @property
    def unchanged(self) -> frozenset[str]:
        return frozenset(step for step, is_changed in self._changed.items() if not is_changed)

    def is_due(self, step: str) -> bool:
        """True if no effect of the step is known to change anything."""
        return not self._changed.get(step, False)

    async def begin(self) -> None:
        """Look before an effect."""
        self._before = await self._read_data()

    async def end(self, step: str) -> None:
        """Look after an effect of the step."""
        self._changed[step] = self._changed.get(step, False) or self._before != await self._read_data()
