"""Runs a saga under each fault that leads backward, on copies of its databases, and compares the rows with before."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from saga_activities.automatic import row_locks
from saga_activities.connections import DatabaseConnections
from saga_workers.undo_check.copies_folder import copies_folder
from saga_workers.undo_check.database_copies import by_database, open_copies
from saga_workers.undo_check.deviations import deviation
from saga_workers.undo_check.mysql_copies import SAGA_PREFIX
from saga_workers.undo_check.planned_orders import OrderPlan, choose, planned_orders
from saga_workers.undo_check.real_participants import RealActions, RealParticipants
from saga_workers.undo_check.run_copies import CopiedDatabase, RunCopies, prepare
from saga_workers.undo_check.step_changes import StepChanges
from saga_workers.undo_check.step_verdicts import Evidence, step_verdicts
from saga_workers.undo_check.undo_report import HiddenTable, LeftRow, UndoneOrder, UndoReport
from saga_workers.undo_check.waivers import apply_waivers
from sagas.definition.model import Definition, is_nested
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.settings import SqlConnection
from sagas.simulation import Script, SimulatedRun, environment_of
from sagas.simulation.failure_points import require_completed
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
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(copies_folder())
        copied: list[CopiedDatabase] = []
        for same in await by_database(connections):
            copies = await stack.enter_async_context(open_copies(project.settings, same, folder))
            copied.append(await prepare(same, copies, project.settings.kafka.shards))
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
        self._real = RealActions(project.actions, copies.connection_names)
        self._used_waivers: set[str] = set()
        self._unchanged: frozenset[str] = frozenset()

    async def run(self, inputs: Sequence[GivenInput], results: Mapping[str, Any], limit: int) -> UndoReport:
        given, script, usual, participants = await self._complete(inputs, results)
        made = {effect.path + effect.entry: effect.result for effect in participants.effects() if effect.done}
        refused = participants.refused
        planned = planned_orders(self._definition, given.value, script, usual, made, refused, self._environment)
        chosen = choose(planned, limit)
        orders = [await self._run_order(given, order) for order in chosen]
        waivers = [name for definition in self._definitions for name in _all_waivers(definition)]
        hidden = self._hidden_tables()
        evidence = Evidence(planned, orders, hidden, self._unchanged, usual.document["undo_refusal"])
        return UndoReport(
            self._definition.saga,
            given.value,
            given.source,
            tuple(orders),
            tuple(step_verdicts(self._definition, self._project.definitions, self._real, evidence)),
            len(planned) - len(chosen),
            tuple(sorted(self._copies.moved_sequences)),
            tuple(name for name in dict.fromkeys(waivers) if name not in self._used_waivers),
            any(step.compensate is not None for definition in self._definitions for step in definition.steps),
            tuple(dict.fromkeys(table for tables in hidden.values() for table in tables)),
            tuple(name for database in self._copies.databases for name in database.copies.of_other_runs),
        )

    async def _complete(
        self, inputs: Sequence[GivenInput], results: Mapping[str, Any]
    ) -> tuple[GivenInput, Script, SimulatedRun, RealParticipants]:
        """The first input with which the saga completes on the databases, and its run."""
        first_error: SagaError | None = None
        for given in inputs:
            script = Script(results=results, input_is_sample=given.is_sample)
            try:
                changes = StepChanges(self._copies.read_data)
                usual, participants = await self._run(self._definition, given, script, changes)
                require_completed(self._definition, script, usual)
                self._unchanged = changes.unchanged
                return given, script, usual, participants
            except UsageError:
                if len(inputs) == 1:
                    raise
            except SagaError as error:
                first_error = first_error or error
            finally:
                await self._copies.delete()
        raise first_error or UsageError("none of the inputs is valid", help="give one with --input '{…}'")

    async def _run_order(self, given: GivenInput, order: OrderPlan) -> UndoneOrder:
        """Run one order; a problem counts only on new copies, where no earlier order can have caused it."""
        undone = await self._run_once(given, order)
        if not undone.is_clean and not self._copies.are_new:
            await self._copies.delete()
            undone = await self._run_once(given, order)
        if undone.left or not undone.is_clean or any(database.hidden for database in self._copies.databases):
            await self._copies.delete()
        return undone

    async def _run_once(self, given: GivenInput, order: OrderPlan) -> UndoneOrder:
        fault = order.fault
        run, participants = await self._run(fault.definition, given, fault.script)
        deviates = deviation(order.simulated, run)
        left = await self._left(participants) if run.state == "COMPENSATED" else []
        undone_by = participants.undone_by if run.state == "COMPENSATED" and deviates is None else ()
        return UndoneOrder(
            fault.step,
            fault.fault,
            run.state,
            tuple(run.undone),
            frozenset(each for each in undone_by if each[0] in participants.performed),
            tuple(left),
            tuple(run.parked),
            order.undone,
            deviates,
        )

    async def _run(
        self, definition: Definition, given: GivenInput, script: Script, changes: StepChanges | None = None
    ) -> tuple[SimulatedRun, RealParticipants]:
        """One run on the copies, after which its rows are unlocked as at the end of every saga."""
        databases = DatabaseConnections(await self._copies.connections(), pool_size=_POOL_SIZE)
        self._copies.keep_inside(databases)
        loop = asyncio.get_running_loop()
        participants = RealParticipants(self._project.actions, databases, loop, self._real, changes)
        saga_id = f"{SAGA_PREFIX}{uuid.uuid4().hex[:12]}"
        try:
            run, _ = await asyncio.to_thread(
                simulate_calls,
                definition,
                given.value,
                script,
                self._environment,
                saga_id=saga_id,
                participants=participants,
            )
            for name in databases.names():
                await row_locks.release(databases.engine(name), saga_id)
        finally:
            await databases.close()
        return run, participants

    def _hidden_tables(self) -> dict[str, list[HiddenTable]]:
        """Tables that are not compared, by the connections that lead there, without those in `undo_leaves`."""
        allowed = {name for definition in self._definitions for name in definition.undo_leaves}
        hidden: dict[str, list[HiddenTable]] = {}
        for database in self._copies.databases:
            places = [place for place in database.hidden if place.name not in allowed]
            self._used_waivers |= {place.name for place in database.hidden}
            for connection in database.connections:
                hidden[connection.name] = [HiddenTable(database.name, place.name, place.why) for place in places]
        return hidden

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
