"""The calls of participants that a saga may still make: what a new version of the actions must be able to perform.

When in doubt a call counts: the first version of an action may go only when no saga can come back to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sagas.builtins.automatic import RESTORE
from sagas.definition.model import Definition, Operation, StepDefinition, is_nested
from sagas.expressions.template_syntax import OPENING
from sagas.machine.builtin_actions import NESTED
from sagas.machine.compensations import current_alternate
from sagas.machine.nested_names import possible_names
from sagas.machine.state import Entry, OperationState, SagaRun, StepRecord
from sagas.machine.undo.rollback import needs_compensation

CallRole = Literal["do", "probe", "compensate", "confirm", "notify"]

_BEYOND_ACTION = frozenset(
    {"DONE", "REJECTED", "SKIPPED", "COMPENSATING", "COMPENSATED", "NOTHING_TO_UNDO", "CONFIRMING", "CONFIRMED"}
)
_MAY_HAVE_EFFECT = frozenset({"RUNNING", "UNKNOWN", "DONE", "PARKED", "CONFIRMING", "CONFIRMED", "COMPENSATING"})
_NEVER_UNDONE = frozenset({"COMPENSATED", "NOTHING_TO_UNDO"})
_BEFORE_UNDO = "completed"
"""The milestone of a notification that is behind a completed saga."""


@dataclass(frozen=True, slots=True)
class RemainingCall:
    """An operation of a step, or a notification, of which ``step`` has the number.

    ``arguments``: as the definition writes them, those of the action for a short form. ``recorded``: they are those
    that an operator has given, or that are kept for a call, so they have values of the saga. The `name` of a nested
    saga is None where nobody can tell it before the step begins. ``restored``: the arguments of the action, for an
    automatic compensation, which restores the rows that the action has changed.
    """

    step: str
    role: CallRole
    operation: Operation
    arguments: Mapping[str, Any]
    recorded: bool = False
    restored: Mapping[str, Any] | None = None


def remaining_calls(run: SagaRun, *, interrupted: bool = False) -> list[RemainingCall]:
    """The calls that a running saga may still make, and those of the undo of a completed one.

    ``interrupted``: its run was closed from outside. It is continued only if it has begun something, and before the
    commit point only backward.
    """
    if run.state in ("COMPENSATED", "RESIDUE") or (interrupted and not _has_begun(run)):
        return []
    goes_back = run.phase == "backward" or (interrupted and run.phase != "committed")
    return [*_of_steps(run, goes_back=goes_back), *_notifications(run)]


def calls_of_definition(definition: Definition) -> list[RemainingCall]:
    """Every call that a saga of this definition may make; without nested sagas whose names are computed."""
    calls = [call for step in definition.steps for call in _all_of_step(step)]
    notified = [
        RemainingCall(str(number), "notify", notification.do, notification.do.with_ or {})
        for number, notification in enumerate(definition.notify)
    ]
    return [call for call in [*calls, *notified] if not (call.operation.uses == NESTED and _is_computed(call))]


def _is_computed(call: RemainingCall) -> bool:
    name = call.arguments.get("name")
    return not isinstance(name, str) or OPENING in name


def _has_begun(run: SagaRun) -> bool:
    """True if a step that is not a read may have had an effect."""
    steps = (step for step in run.definition.steps if step.kind != "read")
    return any(entry.state in _MAY_HAVE_EFFECT for step in steps for entry in run.steps[step.id].entries)


def _of_steps(run: SagaRun, *, goes_back: bool) -> Iterator[RemainingCall]:
    repeats = run.state != "COMPLETED" and _may_repeat_steps(run)
    for step in run.definition.steps:
        record = run.steps[step.id]
        if run.state == "COMPLETED":
            written = _undo_of(run, step, record)
        elif repeats:
            written = _all_of_step(step)
        else:
            written = _of_step(run, step, record, goes_back=goes_back)
        for call in written:
            yield from _named(run, record, step, call)
            yield from _recorded(record, step, call)


def _named(run: SagaRun, record: StepRecord, step: StepDefinition, call: RemainingCall) -> Iterator[RemainingCall]:
    """The call, for a nested saga with each name that it may have, and without a name if it may have others."""
    if call.role != "do" or not is_nested(step):
        yield call
        return
    possible = possible_names(run, record, call.arguments.get("name"))
    for name in (*possible.names, *(() if possible.is_complete else (None,))):
        yield replace(call, arguments={**call.arguments, "name": name})


def _recorded(record: StepRecord, step: StepDefinition, call: RemainingCall) -> Iterator[RemainingCall]:
    """The call with arguments that an operator has given, and with those that are kept for its next attempt."""
    for entry in record.entries:
        state = _operation_state(step, entry, call)
        sent = () if state is None else (state.override, state.arguments)
        of_step = (entry.override, entry.arguments) if call.operation.with_ is None else ()
        for arguments in (*sent, *of_step):
            if arguments is not None:
                yield replace(call, arguments=arguments, recorded=True)
    if call.role == "do" or call.operation.with_ is None:
        for _, given in record.corrections.values():
            yield replace(call, arguments=given, recorded=True)


def _operation_state(step: StepDefinition, entry: Entry, call: RemainingCall) -> Entry | OperationState | None:
    """The state that has the arguments of the call, if it is the current one of its role."""
    match call.role:
        case "do":
            return entry
        case "confirm":
            return entry.confirm
        case "compensate":
            current = entry.undo is not None and current_alternate(step, entry.undo) is call.operation
            return entry.undo if current else None
    return None


def _notifications(run: SagaRun) -> Iterator[RemainingCall]:
    for number, notification in enumerate(run.definition.notify):
        if run.state != "COMPLETED" or set(notification.when) != {_BEFORE_UNDO}:
            do = notification.do
            yield RemainingCall(str(number), "notify", do, do.with_ or {})


def _undo_of(run: SagaRun, step: StepDefinition, record: StepRecord) -> Iterator[RemainingCall]:
    """The compensations that the undo of a completed saga may call."""
    if run.earlier.exist or _may_be_undone(run, record):
        yield from _each(step, "compensate", step.compensations)


def _may_repeat_steps(run: SagaRun) -> bool:
    """True if the states of the steps do not tell what is over: they run again after a savepoint, or an earlier run of
    the saga may have done more than this one knows.
    """
    if run.phase != "committed" and any(step.savepoint is not None for step in run.definition.steps):
        return True
    ahead = (entry.ahead or entry.taken_over for record in run.steps.values() for entry in record.entries)
    return run.earlier.exist or any(ahead)


def _all_of_step(step: StepDefinition) -> Iterator[RemainingCall]:
    yield from _forward(step)
    yield from _each(step, "compensate", step.compensations)
    yield from _confirm(step)


def _of_step(run: SagaRun, step: StepDefinition, record: StepRecord, *, goes_back: bool) -> Iterator[RemainingCall]:
    states = {entry.state for entry in record.entries}
    in_progress = not states <= _BEYOND_ACTION | {"PENDING"}
    if in_progress or (not goes_back and _has_pending_items(record)):
        yield from _forward(step)
    elif _is_looked_up_to_undo(run, record):
        yield from _probe(step)
    if _may_be_undone(run, record) or (not goes_back and _has_pending_items(record)):
        yield from _each(step, "compensate", step.compensations)
    if not goes_back and states != {"CONFIRMED"}:
        yield from _confirm(step)


def _may_be_undone(run: SagaRun, record: StepRecord) -> bool:
    """True if a rollback may call the compensation for an entry that has begun.

    An operator may have skipped an unguarded step while its outcome was unknown: a rollback undoes it nevertheless.
    """
    return any(
        needs_compensation(run, entry) if entry.state == "SKIPPED" else entry.state not in _NEVER_UNDONE
        for entry in record.entries
    )


def _is_looked_up_to_undo(run: SagaRun, record: StepRecord) -> bool:
    """True if a rollback has to look up the effect of an entry that is beyond its action: an operator has skipped it,
    or retries its undo, which was parked before it began.
    """
    return any(
        entry.outcome == "unknown" and needs_compensation(run, entry) and not _has_begun_undo(entry)
        for entry in record.entries
    )


def _has_begun_undo(entry: Entry) -> bool:
    return entry.undo is not None and entry.undo.started_at is not None


def _has_pending_items(record: StepRecord) -> bool:
    items = 1 if record.items is None else len(record.items)
    return len(record.entries) < items or any(entry.state not in _BEYOND_ACTION for entry in record.entries)


def _forward(step: StepDefinition) -> Iterator[RemainingCall]:
    yield from _each(step, "do", (step.do,))
    yield from _probe(step)


def _probe(step: StepDefinition) -> Iterator[RemainingCall]:
    if step.probe is not None:
        yield from _each(step, "probe", (step.probe.operation,))


def _confirm(step: StepDefinition) -> Iterator[RemainingCall]:
    yield from _each(step, "confirm", () if step.confirm is None else (step.confirm,))


def _each(step: StepDefinition, role: CallRole, operations: tuple[Operation, ...]) -> Iterator[RemainingCall]:
    for operation in operations:
        arguments = step.do.with_ if operation.with_ is None else operation.with_
        restored = step.do.with_ if operation.uses == RESTORE else None
        yield RemainingCall(step.id, role, operation, arguments or {}, restored=restored)
