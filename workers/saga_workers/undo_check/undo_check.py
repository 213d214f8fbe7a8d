"""Runs a saga under each fault that leads backward, on copies of its databases, and compares the rows with before."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saga_activities.connections import DatabaseConnections
from saga_workers.undo_check.database_copies import open_copies
from saga_workers.undo_check.real_participants import RealActions, RealParticipants
from saga_workers.undo_check.run_copies import CopiedDatabase, RunCopies, prepare
from saga_workers.undo_check.step_verdicts import step_verdicts
from saga_workers.undo_check.undo_report import LeftRow, UndoneOrder, UndoReport
from saga_workers.undo_check.waivers import apply_waivers
from sagas.definition.model import Definition, is_nested
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.settings import SqlConnection
from sagas.simulation import Script, SimulatedRun, environment_of, simulate
from sagas.simulation.failure_points import PlannedFault, planned_faults, require_completed
from sagas.simulation.simulator import simulate_calls

DEFAULT_LIMIT = 100
"""Orders that are run, unless another number is given."""

_POOL_SIZE = 2


@dataclass(frozen=True, slots=True)
class GivenInput:
    """An input of the saga; ``source`` says where it comes from."""

    value: Any
    source: str = "--input"
    is_sample: bool = False


async def verify_undo(
    project: Project,
    definition: Definition,
    inputs: Sequence[GivenInput],
    results: Mapping[str, Any] | None = None,
    limit: int = DEFAULT_LIMIT,
) -> UndoReport:
    """Verify the undos of a saga with the first of the ``inputs`` with which it completes.

    ``results`` are those of steps that are not run; the others are generated.

    Raises SagaError if a database cannot be copied, or the saga completes with none of the inputs.
    """
    definitions = _with_nested(project, definition)
    connections = _connections(project, definitions)
    with tempfile.TemporaryDirectory(prefix="saga-verify-undo-") as folder:
        async with AsyncExitStack() as stack:
            copied: dict[str, CopiedDatabase] = {}
            for connection in connections:
                copies = await stack.enter_async_context(open_copies(project.settings, connection, Path(folder)))
                copied[connection.name] = await prepare(connection, copies, project.settings.kafka.shards)
            run_copies = await stack.enter_async_context(RunCopies.create(copied))
            check = _UndoCheck(project, definition, definitions, run_copies)
            return await check.run(inputs, results or {}, limit)


class _UndoCheck:
    def __init__(
        self,
        project: Project,
        definition: Definition,
        definitions: Sequence[Definition],
        copies: RunCopies,
    ) -> None:
        self._project = project
        self._definition = definition
        self._definitions = definitions
        self._copies = copies
        self._environment = environment_of(project)
        self._real = RealActions(project.actions, copies.databases)
        self._used_waivers: set[str] = set()

    async def run(self, inputs: Sequence[GivenInput], results: Mapping[str, Any], limit: int) -> UndoReport:
        given, script, usual = await self._complete(inputs, results)
        planned = self._planned(given, script, usual)
        chosen = _choose(planned, limit)
        orders = [await self._run_order(given, fault) for fault in chosen]
        waivers = [name for definition in self._definitions for name in _all_waivers(definition)]
        steps = step_verdicts(self._definition, self._project.definitions, self._real, orders, len(planned) > limit)
        return UndoReport(
            self._definition.saga,
            given.value,
            given.source,
            tuple(orders),
            tuple(steps),
            len(planned) - len(chosen),
            tuple(sorted(self._copies.moved_sequences)),
            tuple(name for name in dict.fromkeys(waivers) if name not in self._used_waivers),
            any(step.compensate is not None for definition in self._definitions for step in definition.steps),
        )

    async def _complete(
        self, inputs: Sequence[GivenInput], results: Mapping[str, Any]
    ) -> tuple[GivenInput, Script, SimulatedRun]:
        """The first input with which the saga completes on the databases, and its run."""
        first_error: SagaError | None = None
        for given in inputs:
            script = Script(results=results, input_is_sample=given.is_sample)
            try:
                usual, _ = await self._run(self._definition, given, script)
                require_completed(self._definition, script, usual)
                return given, script, usual
            except UsageError:
                if len(inputs) == 1:
                    raise
            except SagaError as error:
                first_error = first_error or error
            finally:
                await self._copies.renew()
        raise first_error or UsageError("none of the inputs is valid", help="give one with --input '{…}'")

    def _planned(
        self, given: GivenInput, script: Script, usual: SimulatedRun
    ) -> list[tuple[PlannedFault, tuple[str, ...]]]:
        """The faults after which `saga simulate` ends COMPENSATED, with what is undone, the shortest order first."""
        results = {row["id"]: row["result"] for row in usual.steps if row["outcome"] == "done"}
        planned = []
        for fault in planned_faults(self._definition, script, usual):
            with_results = Script(**{**_fields(fault.script), "results": {**results, **fault.script.results}})
            run = simulate(fault.definition, given.value, with_results, self._environment)
            if run.state == "COMPENSATED":
                planned.append((fault, tuple(run.undone)))
        return sorted(planned, key=lambda each: len(each[1]))

    async def _run_order(self, given: GivenInput, fault: PlannedFault) -> UndoneOrder:
        run, participants = await self._run(fault.definition, given, fault.script)
        left = await self._left(participants) if run.state == "COMPENSATED" else []
        performed = participants.performed
        verified = {entry for entry, op in performed if op == "undo" and (entry, "do") in performed}
        order = UndoneOrder(
            fault.step,
            fault.fault,
            run.state,
            tuple(run.undone),
            frozenset(verified if run.state == "COMPENSATED" else ()),
            tuple(left),
            tuple(run.parked),
        )
        if left or not order.is_clean:
            await self._copies.renew()
        return order

    async def _run(
        self, definition: Definition, given: GivenInput, script: Script
    ) -> tuple[SimulatedRun, RealParticipants]:
        """One run on the copies."""
        databases = DatabaseConnections(await self._copies.connections(), pool_size=_POOL_SIZE)
        loop = asyncio.get_running_loop()
        participants = RealParticipants(self._project.actions, databases, loop, self._real)
        try:
            run, _ = await asyncio.to_thread(
                simulate_calls,
                definition,
                given.value,
                script,
                self._environment,
                saga_id=f"verify-undo-{uuid.uuid4().hex[:12]}",
                participants=participants,
            )
        finally:
            await databases.close()
        return run, participants

    async def _left(self, participants: RealParticipants) -> list[LeftRow]:
        waivers = {name for definition in self._definitions for name in definition.undo_leaves}
        for effect in participants.effects():
            if effect.undone:
                waivers.update(effect.step.undo_leaves)
        left = []
        for name, difference in await self._copies.differences():
            shown, waived, used = apply_waivers(difference, waivers)
            self._used_waivers |= used
            left.append(LeftRow(name, shown, waived))
        return left


def _fields(script: Script) -> dict[str, Any]:
    return {name: getattr(script, name) for name in Script.__slots__}


def _choose(planned: Sequence[tuple[PlannedFault, tuple[str, ...]]], limit: int) -> list[PlannedFault]:
    """At most ``limit`` of the faults: one of each order of undos first."""
    seen: set[tuple[str, ...]] = set()
    firsts, others = [], []
    for fault, undone in planned:
        (others if undone in seen else firsts).append(fault)
        seen.add(undone)
    chosen = {id(fault) for fault in [*firsts, *others][:limit]}
    return [fault for fault, _ in planned if id(fault) in chosen]


def _all_waivers(definition: Definition) -> Iterator[str]:
    yield from definition.undo_leaves
    for step in definition.steps:
        yield from step.undo_leaves


def _with_nested(project: Project, definition: Definition) -> list[Definition]:
    """The definition and those of its nested sagas, as far as they are in the project."""
    reached = {definition.saga: definition}
    waiting = [definition]
    while waiting:
        for step in waiting.pop().steps:
            name = (step.do.with_ or {}).get("name") if is_nested(step) else None
            nested = project.definitions.get(name) if isinstance(name, str) else None
            if nested is not None and nested.saga not in reached:
                reached[nested.saga] = nested
                waiting.append(nested)
    return list(reached.values())


def _connections(project: Project, definitions: Sequence[Definition]) -> list[SqlConnection]:
    """The databases in which steps of the definitions work."""
    used = {
        operation.connection
        for definition in definitions
        for step in definition.steps
        for operation in step.operations_and_probe
    }
    return [connection for connection in project.settings.sql_connections() if connection.name in used]
