"""The activity `saga.load`: what a run needs to know when its starter did not send the definition along."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sagas.definition.input import check_input
from sagas.definition.snapshot import to_snapshot
from sagas.errors import RefusedError, UsageError
from sagas.project import Project
from sagas.wire import unpack_state

ReadMachine = Callable[[str], Awaitable[str | None]]
ListAttributes = Callable[[], Awaitable[list[str]]]


class Loader:
    """Resolves definitions for runs. ``read_machine`` asks a closed run for its state (for `saga undo`)."""

    def __init__(self, project: Project, read_machine: ReadMachine, list_attributes: ListAttributes) -> None:
        self._project = project
        self._read_machine = read_machine
        self._list_attributes = list_attributes

    async def load(self, saga: str, input: Any, undo_of: str | None) -> dict[str, Any]:
        """The snapshot, the checked input, the variables and the search attributes that exist.

        Raises UsageError: unknown saga or invalid input; RefusedError: the run cannot be undone.
        """
        attributes = await self._list_attributes()
        if undo_of is not None:
            return {"attributes": attributes, "input": None, **await self._undo(undo_of, input)}
        definition = self._project.definition(saga)
        checked, problems = check_input(definition, input)
        if problems:
            raise UsageError(f"the input of {saga} is not valid: {problems[0]}")
        return {
            "definition": to_snapshot(definition),
            "input": checked,
            "vars": dict(self._project.settings.vars),
            "attributes": attributes,
        }

    async def _undo(self, undo_of: str, request: Any) -> dict[str, Any]:
        packed = await self._read_machine(undo_of)
        if packed is None:
            raise RefusedError(f"the state of {undo_of} is gone, so it cannot be undone")
        asked = request if isinstance(request, dict) else {}
        return {
            "machine": unpack_state(packed),
            "reason": asked.get("reason"),
            "who": asked.get("who"),
        }
