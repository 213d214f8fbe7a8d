"""The activity `saga.load`: what a run needs if its starter did not send the definition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.api.common.v1 import Payload

from saga_activities.input_checks import checked_input
from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.errors import RefusedError
from sagas.project import Project
from sagas.protocol.size_limits import MAX_STATE_CHARACTERS

ReadMachine = Callable[[str, str | None], Awaitable[str | None]]

ListAttributes = Callable[[], Awaitable[list[str]]]

FindDefinition = Callable[[str], Awaitable[Definition]]

ReadInput = Callable[[str, str], Awaitable[Payload]]


class DefinitionLoader:
    """Resolves definitions for runs.

    ``find_definition`` raises UsageError for an unknown name; ``read_machine`` queries a closed run for its state (for
    `saga undo`); ``read_input`` reads with what input a run was started, by its workflow id and run id.
    """

    def __init__(
        self,
        project: Project,
        find_definition: FindDefinition,
        read_machine: ReadMachine,
        read_input: ReadInput,
        list_attributes: ListAttributes,
    ) -> None:
        self._project = project
        self._find_definition = find_definition
        self._read_machine = read_machine
        self._list_attributes = list_attributes
        self.read_input = read_input

    async def load(self, saga: str, input: Any, undo_of: str | None, run_id: str | None = None) -> dict[str, Any]:
        """The snapshot, the validated input, the variables and the existing search attributes. ``run_id``: the only run
        of ``undo_of`` whose state may be loaded; None for any.

        Raises UsageError: unknown saga or invalid input; RefusedError: the run cannot be undone.
        """
        attributes = await self._list_attributes()
        if undo_of is not None:
            return {"attributes": attributes, "input": None, "machine": await self._load_undo(undo_of, run_id)}
        definition = await self._find_definition(saga)
        checked = await checked_input(definition, input)
        return {
            "definition": to_snapshot(definition),
            "input": checked,
            "vars": dict(self._project.settings.vars),
            "attributes": attributes,
        }

    async def _load_undo(self, undo_of: str, run_id: str | None) -> str:
        packed = await self._read_machine(undo_of, run_id)
        if packed is None:
            raise RefusedError(f"the state of {undo_of} no longer exists, so it cannot be undone")
        if len(packed) > MAX_STATE_CHARACTERS:
            raise RefusedError(
                f"{undo_of} can only be undone by hand: its state has {len(packed):,} bytes, and Temporal accepts "
                f"{MAX_STATE_CHARACTERS:,}"
            )
        return packed
