"""Builds the view of a run, and shrinks it to a size limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sagas.builtins.automatic import RESTORE
from sagas.definition.model import StepDefinition, is_read
from sagas.definition.sensitivity import masked
from sagas.definition.times import format_timestamp
from sagas.machine import parked, redelivery, standing_pauses
from sagas.machine.compensations import current_alternate
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.expressions.expression_fields import evaluate_labels
from sagas.machine.locking import row_locks
from sagas.machine.sensitive_views import without_sensitive_values
from sagas.machine.state import Entry, OperationState, SagaRun, shown_arguments
from sagas.machine.undo.rollback import undo_refusal
from sagas.machine.undo.savepoints import covered_steps
from sagas.protocol.payloads import entry_id
from sagas.protocol.saga_view import (
    DecisionView,
    ErrorView,
    LockBlockerView,
    LocksView,
    NotificationView,
    OperationView,
    ReasonView,
    ResidueView,
    SagaView,
    SavepointView,
    StepView,
)
from sagas.protocol.size_limits import is_omitted, omitted
from sagas.text.exact_json import encode_json


def build_view(run: SagaRun, *, reveal: bool = False) -> SagaView:
    """The view of the run. It contains timestamps only; who shows it computes ages.

    ``reveal``: with the `x-sensitive` values of the input in clear.
    """
    view = SagaView(
        id=run.saga_id,
        saga=run.definition.saga,
        digest=run.definition.digest,
        generation=run.generation,
        state=run.state,
        phase="committed" if run.is_irrevocable and not run.earlier.commit_is_unknown else run.phase,
        reason=None if run.reason is None else ReasonView.from_json(run.reason),
        input=run.input if reveal else masked(run.definition.input, run.input),
        output=None if run.phase == "backward" else run.output,
        labels=_labels(run),
        started_at=format_timestamp(run.started_at),
        committed_at=format_timestamp(run.committed_at),
        ended_at=format_timestamp(run.ended_at),
        deadline_at=format_timestamp(run.deadline_at),
        can_undo=(refusal := undo_refusal(run)) is None,
        undo_refusal=refusal if run.state == "COMPLETED" else None,
        cancel_requested=run.cancel_requested,
        overdue=run.overdue,
        parent=run.parent,
        children=parked.children(run),
        steps=tuple(row for step in run.definition.steps for row in _rows(run, step)),
        parked=parked.rows(run),
        not_done=tuple(run.not_done),
        residue=tuple(map(ResidueView.from_json, run.residue)),
        operator=tuple(map(DecisionView.from_json, run.operator)),
        notifications=tuple(map(NotificationView.from_json, run.notifications)),
        redelivery=redelivery.shown(run),
        savepoints=_savepoints(run) or None,
        locks=_locks(run),
        row_locks=row_locks.connections(run) or None,
        paused=standing_pauses.shown(run),
    )
    return view if reveal else without_sensitive_values(view, run.plan.sensitive_values(run.input))


def _savepoints(run: SagaRun) -> tuple[SavepointView, ...]:
    return tuple(
        SavepointView(
            step=step.id,
            runs=run.steps[step.id].repetitions + 1,
            attempts=step.savepoint.attempts,
            undoing=tuple(covered_steps(run)) if run.savepoint == step.id else None,
        )
        for step in run.definition.steps
        if step.savepoint is not None
    )


def _locks(run: SagaRun) -> LocksView | None:
    locks = run.locks
    if locks is None:
        return None
    blockers = tuple(
        LockBlockerView(
            key=blocker["key"],
            owner=blocker["owner"],
            since=format_timestamp(blocker["since"]) or "",
            parked=blocker.get("parked"),
        )
        for blocker in locks.blockers
    )
    since = format_timestamp(locks.held_at if locks.held_at is not None else locks.requested_at)
    return LocksView(state=locks.state, keys=locks.keys, since=since, waits_for=blockers)


def blank_view(saga_id: str, saga: str) -> SagaView:
    """The view of a run that has not loaded its definition."""
    return SagaView(id=saga_id, saga=saga, generation=1, state="RUNNING", phase="forward")


def _labels(run: SagaRun) -> dict[str, str]:
    try:
        return evaluate_labels(run)
    except DefinitionError:
        return {}  # such a saga never runs: the client refuses the input, and the worker refuses the run


def _rows(run: SagaRun, step: StepDefinition) -> Iterator[StepView]:
    record = run.steps[step.id]
    for entry in record.entries:
        yield _row(run, step, entry)
    for n in range(len(record.entries), len(record.items or ())):
        yield _row(run, step, Entry(entry_id(step.id, n), step.id, n, record.generation or run.generation))
    if not record.entries and not record.items:
        yield _row(run, step, Entry(step.id, step.id, generation=record.generation or run.generation))


def _row(run: SagaRun, step: StepDefinition, entry: Entry) -> StepView:
    return StepView(
        id=entry.id,
        step=step.id,
        name=step.name,
        uses=step.do.uses,
        state=entry.state,
        outcome=entry.outcome,
        generation=entry.generation,
        attempts=entry.attempts,
        guarantee=step.guarantee,
        effect="none" if is_read(step) else None,
        result=entry.result,
        result_kept=False if is_omitted(entry.result) else None,
        error=_error(entry.error),
        arguments=_arguments(entry),
        next_attempt_at=_next_attempt(run, f"{entry.id}~retry"),
        started_at=format_timestamp(entry.started_at),
        ended_at=format_timestamp(entry.ended_at),
        compensation=_compensation_view(run, step, entry),
        confirmation=_operation_view(
            step.confirm.uses if step.confirm else None,
            entry.confirm,
            next_attempt_at=_next_attempt(run, f"{entry.id}~confirm-retry"),
        ),
    )


def _next_attempt(run: SagaRun, flight_id: str) -> str | None:
    """When the machine repeats a call; Temporal knows when it does so itself."""
    flight = run.flights.get(flight_id)
    return None if flight is None else format_timestamp(flight.fires_at)


def _error(error: dict[str, Any] | None) -> ErrorView | None:
    return None if error is None else ErrorView.from_json(error)


def _arguments(call: Entry | OperationState) -> Mapping[str, Any] | None:
    """The arguments of a call in flight, of which Temporal knows the failed attempts, or of one without success."""
    if call.arguments is None or call.outcome == "done" or call.state == "DONE":
        return None
    return shown_arguments(call.arguments)


def _compensation_view(run: SagaRun, step: StepDefinition, entry: Entry) -> OperationView | None:
    if entry.undo is None:
        return None
    uses = "saga" if step.compensate is None else current_alternate(step, entry.undo).uses
    return _operation_view(uses, entry.undo, next_attempt_at=_next_attempt(run, f"{entry.id}~undo-retry"))


def _operation_view(
    uses: str | None, operation: OperationState | None, *, next_attempt_at: str | None
) -> OperationView | None:
    if uses is None or operation is None:
        return None
    return OperationView(
        uses=uses,
        state=operation.state,
        attempts=operation.attempts,
        alternate=operation.alternate,
        error=_error(operation.error),
        arguments=None if uses == RESTORE else _arguments(operation),  # its rows are in `parked`
        next_attempt_at=next_attempt_at,
        ended_at=format_timestamp(operation.ended_at),
        left_to=tuple(operation.left_to) or None,
    )


def shrink_view(view: SagaView, limit_bytes: int) -> SagaView:
    """Shrink the view to ``limit_bytes`` of JSON (rule 9): first its largest inputs and results are omitted, then
    finished items are counted instead, then lists are cut, that of the steps first to those that are under way.

    What an operator needs is cut last: entries in an error state, residue, parked operations. The output is omitted
    only if the view would be too large with nothing but the output.
    """
    if _view_size(view) <= limit_bytes:
        return view
    if _view_size(_only_output(view)) > limit_bytes:
        view = replace(view, output=omitted(_json_size(view.output)))
    smallest = view
    for stage in _stages(view):
        smallest = _without_large_values(stage, _view_size(stage) - limit_bytes)
        if _view_size(smallest) <= limit_bytes:
            break
    return smallest


_LISTS = ("notifications", "operator", "steps", "children", "not_done", "residue", "parked")
"""The fields that are cut, in this order."""

_DROPPABLE_STATES = frozenset({"DONE", "CONFIRMED", "COMPENSATED", "NOTHING_TO_UNDO", "SKIPPED", "PENDING"})


def _stages(view: SagaView) -> Iterator[SagaView]:
    """The view with fewer and fewer rows; those that are left have all their values."""
    yield view
    view = _with_rows(
        view, tuple(row for row in view.steps if row.state not in _DROPPABLE_STATES or row.id == row.step)
    )
    yield view
    for name in _LISTS:
        if name == "steps":
            view = _with_rows(view, tuple(row for row in view.steps if row.state not in _DROPPABLE_STATES))
            yield view
        while values := getattr(view, name):
            half = values[: len(values) // 2]
            view = _with_rows(view, half) if name == "steps" else replace(view, **{name: half})
            yield view


def _with_rows(view: SagaView, rows: tuple[StepView, ...]) -> SagaView:
    """The view with these of its rows; the others are counted."""
    dropped = _count(view.steps) - _count(rows) + Counter(view.steps_omitted)
    return replace(view, steps=rows, steps_omitted=dict(dropped) or None)


def _count(rows: tuple[StepView, ...]) -> Counter[str]:
    return Counter(f"{row.step} {row.state}" for row in rows)


def _only_output(view: SagaView) -> SagaView:
    """The view without all else that can be omitted."""
    view = replace(_with_rows(view, ()), **dict.fromkeys(_LISTS, ()))
    return _without_large_values(view, _view_size(view))


def _view_size(view: SagaView) -> int:
    return _json_size(view.to_json())


def _json_size(value: Any) -> int:
    return len(encode_json(value, default=str))


def _without_large_values(view: SagaView, excess: int) -> SagaView:
    """Replace inputs and results by placeholders, the largest first, until ``excess`` bytes are saved."""
    rows = list(view.steps)
    sizes = [
        (_json_size(value), number, name)
        for number, row in enumerate(rows)
        for name in ("result", "arguments")
        if (value := getattr(row, name)) is not None
    ]
    sizes.append((_json_size(view.input), -1, "input"))
    for size, number, name in sorted(sizes, reverse=True):
        saved = size - _json_size(omitted(size))
        if excess <= 0 or saved <= 0:
            break
        excess -= saved
        if number >= 0:
            rows[number] = replace(rows[number], **{name: omitted(size)})
        else:
            view = replace(view, input=omitted(size))
    return replace(view, steps=tuple(rows))
