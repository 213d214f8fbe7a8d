"""Anomalies that the statements of `sql` steps show: lost updates, and decisions about what others may still undo."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sagas.definition.analysis.exposure import locked_steps, may_be_undone, steps_in, used_steps
from sagas.definition.model import Definition, Operation, StepDefinition, is_read
from sagas.sql_text.statement_effects import StatementEffect, statement_effect

_UPDATE = re.compile(r"\bupdate\b", re.IGNORECASE)


def statements_of(operation: Operation, forward: Operation) -> list[Mapping[str, Any]]:
    """The literal statements of `sql`, each with its ``params`` and ``expect_rows``; those of ``forward`` if short."""
    if operation.uses != "sql":
        return []
    arguments = operation.with_ if operation.with_ is not None else forward.with_ or {}
    run = arguments.get("run")
    if isinstance(run, str):
        run = [{**arguments, "sql": run}]
    elif isinstance(run, Mapping):
        run = [{**arguments, **run}]
    elif not isinstance(run, list):
        return []
    listed = [{"sql": statement} if isinstance(statement, str) else statement for statement in run]
    return [
        statement for statement in listed if isinstance(statement, Mapping) and isinstance(statement.get("sql"), str)
    ]


@dataclass(frozen=True, slots=True)
class LostUpdate:
    """``column`` of ``table`` is set to a value computed from what the step ``read`` has read of it earlier."""

    read: str
    table: str
    column: str
    sql: str


def lost_updates(definition: Definition, step: StepDefinition) -> list[LostUpdate]:
    """The updates of ``step`` that overwrite what others have written since an earlier step of the saga has read it.

    None if the statement compares something else that was read (a version) and insists on its number of rows, or if
    both steps run under the saga's locks.
    """
    locked = locked_steps(definition)
    warnings = []
    for read in _sql_reads(definition, step):
        if not {read.id, step.id} <= locked:
            warnings += _unchecked_updates(read, step)
    return warnings


def checks_version(read: StepDefinition, step: StepDefinition) -> bool:
    """True if ``step`` updates what ``read`` has read, and each such statement notices that it has changed since."""
    pairs = list(_updates_of_read(read, step))
    return bool(pairs) and all(_is_checked(read, *pair) for pair in pairs)


def _sql_reads(definition: Definition, step: StepDefinition) -> list[StepDefinition]:
    """The `sql` steps whose result an update of ``step`` uses."""
    if not any(_UPDATE.search(statement["sql"]) for statement in statements_of(step.do, step.do)):
        return []
    used = used_steps(step)
    return [other for other in definition.steps if other.id in used and other.do.uses == "sql" and other.id != step.id]


def _unchecked_updates(read: StepDefinition, step: StepDefinition) -> Iterator[LostUpdate]:
    for selected, updated, statement in _updates_of_read(read, step):
        if _is_checked(read, selected, updated, statement):
            continue
        params = statement.get("params") or {}
        for assignment in updated.assignments:
            computed = any(read.id in steps_in(params.get(name)) for name in assignment.parameters)
            if computed and not assignment.reads and {assignment.column, "*"} & selected.columns:
                yield LostUpdate(read.id, updated.table, assignment.column, statement["sql"])


_Pair = tuple[StatementEffect, StatementEffect, Mapping[str, Any]]


def _updates_of_read(read: StepDefinition, step: StepDefinition) -> Iterator[_Pair]:
    """Each query of ``read`` with each update of the same table in ``step`` that uses its result."""
    queries = [statement_effect(statement["sql"]) for statement in statements_of(read.do, read.do)]
    for statement in statements_of(step.do, step.do):
        if not _UPDATE.search(statement["sql"]) or read.id not in steps_in(statement.get("params")):
            continue
        updated = statement_effect(statement["sql"])
        for selected in queries:
            if (
                updated is not None
                and updated.kind == "update"
                and selected is not None
                and selected.kind == "read"
                and selected.table == updated.table
            ):
                yield selected, updated, statement


def _is_checked(
    read: StepDefinition, selected: StatementEffect, updated: StatementEffect, statement: Mapping[str, Any]
) -> bool:
    """True if WHERE compares something that was read, other than what the row was looked up by."""
    params = statement.get("params") or {}
    keys = set(selected.compared.values())
    versions = [
        name
        for name, column in updated.compared.items()
        if column not in keys and read.id in steps_in(params.get(name))
    ]
    return bool(versions) and bool(statement.get("expect_rows"))


def uncommitted_reads(definition: Definition, step: StepDefinition) -> list[tuple[str, str, str]]:
    """Return what ``step``, which is never undone, relies on although another run may still undo it.

    Each is the reading step, the table, and the step whose effect on it others can see too early.
    """
    if is_read(step) or may_be_undone(definition, step):
        return []
    locked = locked_steps(definition)
    # Statements are analysed last: most definitions have no such pair of steps.
    writers = [
        step
        for step in definition.steps
        if step.do.uses == "sql" and may_be_undone(definition, step) and step.confirm is None and step.id not in locked
    ]
    reads = [step for step in definition.steps if step.do.uses == "sql" and is_read(step) and step.id not in locked]
    if not writers or not reads:
        return []
    used = used_steps(step)
    return [
        (read.id, table, writer.id)
        for read in reads
        if read.id in used and not checks_version(read, step)
        for writer in writers
        for table in sorted(_tables(read, ("read",)) & _tables(writer, ("insert", "update")))
    ]


def _tables(step: StepDefinition, kinds: tuple[str, ...]) -> set[str]:
    effects = [statement_effect(statement["sql"]) for statement in statements_of(step.do, step.do)]
    return {effect.table for effect in effects if effect is not None and effect.kind in kinds}


def non_commutative_statement(step: StepDefinition) -> str | None:
    """A statement of the step, or of what undoes it, whose result depends on the order; None if there is none known.

    A row that the step itself has inserted may be deleted again.
    """
    inserted = _tables(step, ("insert",))
    for operation in (step.do, *step.compensations):
        for statement in statements_of(operation, step.do):
            effect = statement_effect(statement["sql"])
            if effect is None or effect.commutes or (operation is not step.do and effect.table in inserted):
                continue
            return statement["sql"]
    return None
