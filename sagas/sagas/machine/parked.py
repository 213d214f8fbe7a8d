"""The parked operations of a saga and of its nested sagas, as the view and reports to the parent show them.

A nested saga reports its parked operations to its parent, which forwards them to its own parent. So each saga of a
chain names the one that blocks it, without a query to another saga.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.builtins.automatic import RESTORE
from sagas.builtins.registry import BUILTINS
from sagas.definition.times import format_timestamp
from sagas.machine.builtin_actions import child_saga_id, forget_report
from sagas.machine.compensations import current_alternate
from sagas.machine.corrections import is_open
from sagas.machine.decisions.rules import corrects_with_arguments, decided_operation, possible_decisions
from sagas.machine.expressions.evaluation import DEFINITION_FAILURE
from sagas.machine.failure_reasons import NO_GUARD_ROW
from sagas.machine.parked_outputs import output_fields
from sagas.machine.parked_rows import row_fields
from sagas.machine.state import OUTPUT_STEP, Entry, Flight, ParkedOperation, SagaRun
from sagas.protocol.messages import ChildParked, RecordState, ReportParked
from sagas.protocol.outcomes import OTHER_ARGUMENTS
from sagas.protocol.saga_view import ChildView, Decision, ParkedView
from sagas.text.json_forms import OBJECT, form_of_value
from sagas.text.masked_texts import mask_texts
from sagas.text.shell import saga_command

MOST_REPORTED = 10
"""Maximum parked operations in one report: it names what blocks the parent; it is not meant for bulk processing."""

LONGEST_WHY = 300
"""Maximum characters of the reason in a report."""

_NOT_RETRIED_FIRST = (NO_GUARD_ROW, *OTHER_ARGUMENTS)
"""A retry would park again, or make the effect beside that of another run, which `saga resume` may continue."""


def rows(run: SagaRun) -> tuple[ParkedView, ...]:
    """The field ``parked`` of the view: the operations parked here, then each step blocked by a nested saga."""
    nested = tuple(
        ParkedView(
            step=child.step,
            op="do" if (entry := run.entry(child.step)) is None or entry.undo is None else "undo",
            since=wait.since,
            why=f"the nested saga {wait.id} waits for an operator at {wait.step}: {wait.why}",
            decisions=wait.decisions,
            commands=wait.commands,
        )
        for child in children(run)
        for wait in child.waits or ()
    )
    return tuple(_row(run, parked) for parked in run.parked.values()) + nested


def children(run: SagaRun) -> tuple[ChildView, ...]:
    """The field ``children`` of the view. ``blocks``: whether the whole saga or only the step waits for the child."""
    views = []
    for child in run.children.values():
        blocks = None if not child.get("waits") else "saga" if _is_blocked(run) else "step"
        views.append(ChildView.from_json({**child, "blocks": blocks}))
    return tuple(views)


def report(run: SagaRun) -> None:
    """Report the parked operations to the parent when they have changed. The end of a saga needs no report."""
    if run.parent is None:
        return
    latest = None
    if not run.finished and (waits := list(_waits(run))):
        latest = {"state": run.state, "blocked": _is_blocked(run), "waits": waits[:MOST_REPORTED]}
    if latest != run.reported:
        run.reported = latest
        if not run.finished:
            blocked, waits = (latest["blocked"], latest["waits"]) if latest else (False, [])
            run.emit(ReportParked(run.state, blocked, waits))


def reported(run: SagaRun, event: ChildParked) -> None:
    """Store the report of a nested saga in flight."""
    flight = next((flight for flight in run.flights.values() if _is_of(run, flight, event)), None)
    if flight is None:
        return  # the nested saga has ended
    child = run.children[flight.entry]
    if event.waits and not child.get("waits") and run.state != "PARKED":
        run.emit(RecordState(run.state, flight.entry, None))  # `saga parked` finds the parent by it
    child |= {"state": event.state, "waits": [dict(wait) for wait in event.waits], "blocked": event.blocked}
    if not event.waits:
        forget_report(child)


def _is_of(run: SagaRun, flight: Flight, event: ChildParked) -> bool:
    entry = run.entry(flight.entry)
    if flight.kind != "saga" or entry is None:
        return False
    return child_saga_id(run, entry) == event.saga_id and (flight.call_kind == "undo") == event.undo


def _is_blocked(run: SagaRun) -> bool:
    """True when nothing can run until an operator decides: only nested sagas are in flight, and all are blocked."""
    waiting = [flight for flight in run.flights.values() if not flight.background]
    return run.state == "PARKED" or (
        waiting != [] and all(f.kind == "saga" and run.children.get(f.entry, {}).get("blocked") for f in waiting)
    )


def _waits(run: SagaRun) -> Iterator[dict[str, Any]]:
    texts = run.plan.sensitive_texts(run.input)
    for parked in run.parked.values():
        row = _row(run, parked)
        shown = ParkedView(
            step=row.step,
            op=row.op,
            since=row.since,
            why=mask_texts(row.why, texts)[:LONGEST_WHY],
            decisions=row.decisions,
            commands=row.commands,
        )
        yield {"id": run.saga_id, "saga": run.definition.saga, **shown.to_json()}
    for child in run.children.values():
        yield from child.get("waits", ())


def _row(run: SagaRun, parked: ParkedOperation) -> ParkedView:
    entry = run.entry(parked.step)
    possible: list[Decision] = (
        ["retry", "done"] if parked.step == OUTPUT_STEP or entry is None else possible_decisions(run, entry, parked.op)
    )
    possible.sort(key=lambda decision: decision == "retry" and parked.why in _NOT_RETRIED_FIRST)
    return ParkedView(
        step=parked.step,
        op=parked.op,
        since=format_timestamp(parked.since) or "",
        why=parked.why,
        decisions=tuple(possible),
        commands=(
            *_corrections(run, parked, entry),
            *(_command(run, parked, entry, decision) for decision in possible),
        ),
        next_probe_at=_next_probe(run, parked),
        **_row_fields(run, parked, entry),
    )


def _next_probe(run: SagaRun, parked: ParkedOperation) -> str | None:
    """When the probe of a parked pivot is asked again; None while it is asked."""
    flight = run.flights.get(f"{parked.step}~ask") if parked.op == "do" else None
    return None if flight is None else format_timestamp(flight.fires_at)


def _row_fields(run: SagaRun, parked: ParkedOperation, entry: Entry | None) -> dict[str, Any]:
    if entry is None or parked.op != "undo" or entry.undo is None:
        return {}
    step = run.step(entry)
    operation = step.do if step.compensate is None else current_alternate(step, entry.undo)
    return row_fields(run, entry, operation) or output_fields(entry, operation)


def _corrections(run: SagaRun, parked: ParkedOperation, entry: Entry | None) -> tuple[str, ...]:
    """The retry with a corrected definition or other arguments, where a plain one would fail the same way.

    A rejection is an answer to the arguments: the same ones are refused again, unless the participant has changed. A
    statement in the code of an action, or of the engine, is in no definition: the table, the rights or the code have to
    be corrected.
    """
    definition = saga_command("resolve", run.saga_id, parked.step, "retry", reason="…", definition="FILE")
    if entry is None:
        return (definition,)
    arguments = saga_command("resolve", run.saga_id, parked.step, "retry", reason="…", **{"with": "{…}"})
    if is_open(run, entry, parked.op):
        return (arguments,)
    operation = {"do": entry, "undo": entry.undo, "confirm": entry.confirm}[parked.op]
    error = (operation and operation.error) or {}
    details = error.get("details") or {}
    called = decided_operation(run, entry, parked.op)
    if called is not None and _has_own_statements(called.uses, details) and _is_unrunnable(details):
        return ()
    of_value = details.get("cannot_heal")
    is_rejected = error.get("type") == "Rejected"
    if not of_value and not is_rejected and error.get("type") != DEFINITION_FAILURE:
        return ()
    if not corrects_with_arguments(run, entry, parked.op):
        return () if is_rejected else (definition,)
    if is_rejected:
        return (arguments,)
    return (arguments, definition) if of_value else (definition, arguments)


_UNRUNNABLE_CODES = ("SQLITE_ERROR", 1054, 1064, 1142, 1143, 1146, 1305)
"""Codes of SQLite and of MariaDB for a statement with unknown names, wrong syntax, or without the right."""


def _has_own_statements(action: str, details: Mapping[str, Any]) -> bool:
    """True if the statement that has failed is not one that a definition can correct. An action may have another code
    among its details, so its statement has to be there; a restoration has none of anybody else.
    """
    return action == RESTORE or (action not in BUILTINS and "statement" in details)


def _is_unrunnable(details: Mapping[str, Any]) -> bool:
    """True if the database cannot run the statement, whatever its values are; of PostgreSQL the classes 42 and 0A."""
    code = details.get("code")
    return code in _UNRUNNABLE_CODES or (isinstance(code, str) and code.startswith(("42", "0A")))


def _command(run: SagaRun, parked: ParkedOperation, entry: Entry | None, decision: str) -> str:
    pivot = entry is not None and run.step(entry).pivot and run.phase == "forward"
    unguarded = entry is not None and not run.step(entry).do.guarded
    proven = (decision == "done" and (parked.op == "undo" or pivot)) or (
        decision == "compensate" and pivot and unguarded
    )
    return saga_command(
        "resolve",
        run.saga_id,
        parked.step,
        decision,
        reason="…",
        result=_result_form(run, entry) if decision == "done" and parked.op == "do" else None,
        evidence="…" if proven else None,
    )


def _result_form(run: SagaRun, entry: Entry | None) -> str:
    """The form of the result to write: as declared, or as other items of the step have returned it, or an object."""
    if entry is None:
        return OBJECT
    step = run.step(entry)
    if step.do.uses == "sql":
        return "[{…}]"
    returned = (form_of_value(other.result) for other in run.record(entry).entries)
    return step.result_form or next((form for form in returned if form is not None), OBJECT)
