"""Builds the Call commands of the machine.

A Call is a function of the state, so that a restored machine can reissue everything in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from sagas.builtins.automatic import RESTORE
from sagas.builtins.spark import DISCARD, REVERT
from sagas.definition.model import Operation, Retry, StepDefinition, is_read, remaining_retry
from sagas.machine import (
    attempt_counts,
    builtin_actions,
    corrected_probes,
    corrections,
    image_scopes,
    result_rooms,
    retries,
)
from sagas.machine.compensations import current_alternate
from sagas.machine.earlier.doubts import believed_promises
from sagas.machine.expressions import arguments, evaluation, expression_fields
from sagas.machine.locking import locks, row_locks
from sagas.machine.operator_record import last_decision
from sagas.machine.parked_rows import restore_details
from sagas.machine.state import CallKind, Entry, EntryOperation, Flight, LookupPurpose, OperationState, SagaRun
from sagas.protocol.messages import Call, CallEnded, CancelCall, CancelSaga, Command, GuardSpec, StartTimer
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import CLOSE_NESTED, RECORD_RESULT, SKIP_RESTORE, arguments_hash, idempotency_key
from sagas.text.exact_json import decode_json, encode_json

MARK_UNDO = "saga.undo"
MARK_CONFIRM = "saga.confirm"
SEAL = "saga.seal"
SKIP_RETRY = Retry(max_attempts=4, initial_interval=1.0, max_interval=4.0)
"""The attempts of one call; the machine repeats it until the database answers."""


_OPERATION_OF = {"undo-mark": "undo", "confirm-mark": "confirm", "write": "do", "skip": "undo"}


def send_call(
    run: SagaRun, entry: Entry, kind: CallKind, purpose: LookupPurpose = "", *, background: bool = False
) -> None:
    """Send a call and register its flight. Raises DefinitionError when the arguments cannot be evaluated."""
    flight = Flight(_call_id(entry, kind), "call", entry.id, kind, run.now, purpose)
    if kind == "do":
        result_rooms.reserve(run, entry)
    call = build_call(run, entry, flight)
    run.start_flight(flight.id, "call", entry, kind, purpose, background=background)
    run.emit(call)


def send_or_park(
    run: SagaRun, entry: Entry, op: Literal["undo", "confirm"], kind: CallKind, operation: OperationState
) -> None:
    """Send the call of an undo or a confirm. It parks if its arguments ignore a correction, or cannot be computed."""
    try:
        if corrections.is_open(run, entry, op):
            prepare = prepare_undo if op == "undo" else prepare_confirm
            run.park(entry, op, corrections.question(run, entry, op, prepare(run, entry)))
        else:
            send_call(run, entry, kind)
    except evaluation.DefinitionError as error:
        operation.error = {"type": evaluation.DEFINITION_FAILURE, "message": str(error), "details": {}}
        run.park(entry, op, str(error))


def build_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    """Build the Call of a flight. Raises DefinitionError when the arguments cannot be evaluated."""
    call = _build_call(run, entry, flight)
    if call.guard is None or not run.step(entry).do.two_phase:
        return call
    return replace(call, guard=replace(call.guard, two_phase=True))


def _build_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    match flight.call_kind:
        case "do":
            return _forward_call(run, entry, flight)
        case "probe":
            return _probe_call(run, entry, flight)
        case "seal":
            return _seal_call(run, entry, flight)
        case "write":
            return _manual_result_call(run, entry, flight)
        case "undo" | "undo-mark":
            return _undo_call(run, entry, flight)
        case "skip":
            return _skip_call(run, entry, flight)
        case "confirm" | "confirm-mark":
            return _confirm_call(run, entry, flight)


def _call_id(entry: Entry, kind: CallKind) -> str:
    if kind == "do":
        return entry.id
    if kind == "undo" and entry.undo is not None and entry.undo.alternate:
        return f"{entry.id}~undo.{entry.undo.alternate}"
    return f"{entry.id}~{kind}"


def _forward_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    step = run.step(entry)
    if entry.arguments is None:
        entry.arguments = arguments.forward_arguments(run, entry, entry.override)
    operation = step.do
    return _new_call(
        run,
        entry,
        flight,
        operation,
        operation.uses,
        entry.arguments,
        step.name,
        retry=retries.remaining_of_call(run, entry, flight, retries.call_retry(step, entry.min_attempts)),
        execution=step.execution,
        guard=_forward_guard(run, entry, operation) if operation.connection else None,
        earlier_attempts=entry.min_attempts,
        cancellable=not step.pivot,
        at_most_once=retries.is_single_attempt(step),
        returns_failure=retries.returns_failure(run, entry),
    )


def _forward_guard(run: SagaRun, entry: Entry, operation: Operation) -> GuardSpec:
    scope = image_scopes.undo_scope(run, entry) if operation.images else ""
    connection, room = _required_connection(operation), run.result_rooms.get(entry.id)
    return GuardSpec(connection, holds=operation.holds, images=operation.images, undo_scope=scope, room=room)


def _probe_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    step = run.step(entry)
    probe = corrected_probes.probe_of(run, entry)
    assert probe is not None
    operation = probe.operation
    key = idempotency_key(run.saga_id, entry.id, entry.generation)
    is_written = entry.override is None
    call_arguments = arguments.operation_arguments(run, entry, "probe", operation, key, is_written=is_written)
    return _new_call(run, entry, flight, operation, operation.uses, call_arguments, f"? probe {step.name}")


def _seal_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    step = run.step(entry)
    call = _new_call(run, entry, flight, step.do, SEAL, {}, f"? did {step.name} happen")
    return replace(call, guard=GuardSpec(_required_connection(step.do)), heartbeat=None, cancellable=False)


def _manual_result_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    step = run.step(entry)
    if flight.purpose == "backward" and builtin_actions.has_nested_undo(run, entry):
        return _close_nested_call(run, entry, flight)
    op = "do"
    operation, key, mode = step.do, idempotency_key(run.saga_id, entry.id, entry.generation), "decide"
    earlier = entry.min_attempts
    if flight.purpose == "backward" and entry.undo is not None:
        op, operation = "undo", current_alternate(step, entry.undo)
        mode = "own" if entry.undo.guard_decided or not step.do.guarded else "decide"
        key = idempotency_key(run.saga_id, entry.id, entry.generation, "undo", entry.undo.alternate)
        earlier = entry.undo.min_attempts
    elif flight.purpose == "not_done" and entry.confirm is not None and step.confirm is not None:
        op, operation = "confirm", step.confirm
        mode = "own" if entry.confirm.guard_decided or not step.do.guarded else "decide"
        key, earlier = idempotency_key(run.saga_id, entry.id, entry.generation, "confirm"), entry.confirm.min_attempts
    call_arguments = {"result": (entry.decision or {}).get("result")}
    if op == "undo" and operation.uses == RESTORE:
        details = restore_details(entry, operation)
        call_arguments["images"] = None if details is None else details["images"]
    if op == "undo" and operation.uses in (DISCARD, REVERT):
        call_arguments["closes"] = {"action": operation.uses, "decision": last_decision(run, entry.id)}
    summary = f"✎ {op} {step.name}: done, recorded by an operator"
    call = _new_call(run, entry, flight, operation, RECORD_RESULT, call_arguments, summary)
    # The row is written where it is decisive: in the step's own guard, unless that guard has already decided
    # `elsewhere`, or the step has none.
    confirmed = (RECORD_RESULT, call_arguments) if op == "undo" else None
    guard = GuardSpec(_required_connection(operation if mode == "own" else step.do), mode, confirmed=confirmed)
    return replace(call, op=op, key=key, guard=guard, earlier_attempts=earlier, heartbeat=None, cancellable=False)


def _undo_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    step, undo = run.step(entry), entry.undo
    assert undo is not None
    operation = current_alternate(step, undo)
    key = idempotency_key(run.saga_id, entry.id, entry.generation, "undo", undo.alternate)
    known_done = entry.outcome == "done"
    summary = f"↩ undo {step.name}"
    if flight.call_kind == "undo-mark":
        call = _new_call(run, entry, flight, replace(operation, task_queue=None), MARK_UNDO, {}, summary)
        guard = GuardSpec(_required_connection(step.do), "mark", known_done, _confirmed_undo(run, entry, step, key))
        guard = replace(guard, forward_hash=_forward_hash(run, entry))
        return replace(
            call, guard=guard, key=idempotency_key(run.saga_id, entry.id, entry.generation, "undo"), local=True
        )
    undo_arguments = prepare_undo(run, entry)
    guard = None
    if operation.connection is not None:
        # After a decision of `elsewhere`, even an alternate on the step's connection writes its own row: the row of
        # `undo` already holds that decision.
        if step.do.connection == operation.connection and not undo.undoes_confirmed and not undo.guard_decided:
            guard = GuardSpec(operation.connection, "decide", known_done, _confirmed_undo(run, entry, step, key))
        else:
            guard = GuardSpec(operation.connection, "own", known_done)
        if guard.mode == "decide":
            guard = replace(guard, forward_hash=_forward_hash(run, entry))
        if operation.uses in (RESTORE, DISCARD, REVERT):
            guard = replace(guard, undone_steps=image_scopes.undone_steps(run))
    return _new_call(
        run,
        entry,
        flight,
        operation,
        operation.uses,
        undo_arguments,
        summary,
        retry=retries.operation_retry(operation, undo),
        guard=guard,
        earlier_attempts=undo.min_attempts,
    )


def _forward_hash(run: SagaRun, entry: Entry) -> str | None:
    """The hash of the arguments of an effect that this run may not have made.

    None if it has made it, or its arguments are not known any more.
    """
    if entry.outcome == "done" and not entry.looked_up:
        return None
    sent = entry.arguments
    if sent is None and (entry.override is not None or any("definition" in row for row in run.operator)):
        return None
    try:
        sent = arguments.forward_arguments(run, entry, None) if sent is None else sent
    except evaluation.DefinitionError:
        return None
    return arguments_hash(decode_json(encode_json(sent)))


def _undo_arguments(
    run: SagaRun, entry: Entry, undo: OperationState, override: Mapping[str, Any] | None
) -> dict[str, Any]:
    place = "compensate.confirmed" if undo.undoes_confirmed else f"compensate.{undo.alternate}"
    key = idempotency_key(run.saga_id, entry.id, entry.generation, "undo", undo.alternate)
    return arguments.operation_arguments(run, entry, place, current_alternate(run.step(entry), undo), key, override)


def prepare_undo(run: SagaRun, entry: Entry) -> dict[str, Any]:
    """The arguments of the undo, computed once. Raises DefinitionError."""
    undo = entry.undo
    assert undo is not None
    if undo.arguments is None:
        undo.arguments = _undo_arguments(run, entry, undo, undo.override)
    return undo.arguments


def prepare_confirm(run: SagaRun, entry: Entry) -> dict[str, Any]:
    """The arguments of the confirm, computed once. Raises DefinitionError."""
    operation, confirm = run.step(entry).confirm, entry.confirm
    assert confirm is not None
    assert operation is not None
    if confirm.arguments is None:
        key = idempotency_key(run.saga_id, entry.id, entry.generation, "confirm")
        confirm.arguments = arguments.operation_arguments(run, entry, "confirm", operation, key, confirm.override)
    return confirm.arguments


def arguments_without_override(
    run: SagaRun, entry: Entry, op: EntryOperation, operation: Operation
) -> Mapping[str, Any]:
    """The arguments of an operation as the definition says, whatever an operator has given instead."""
    state = {"do": entry, "undo": entry.undo, "confirm": entry.confirm}[op]
    if state is None or state.override is None:
        return arguments.sent_arguments(entry, op, operation)
    try:
        if op == "undo" and entry.undo is not None:
            return _undo_arguments(run, entry, entry.undo, None)
        if op == "confirm":
            key = idempotency_key(run.saga_id, entry.id, entry.generation, "confirm")
            return arguments.operation_arguments(run, entry, "confirm", operation, key)
        return arguments.forward_arguments(run, entry, override=None)
    except evaluation.DefinitionError:
        return operation.with_ or {}


def _close_nested_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    """Record that an operator has decided about the undo of a nested saga, whose images nobody will restore."""
    step, skipped = run.step(entry), flight.call_kind == "skip"
    details = restore_details(entry, step.do)
    call_arguments = {
        "saga_id": builtin_actions.child_saga_id(run, entry),
        "connections": list(row_locks.connections(run)),
        "images": None if details is None else details["images"],
        "skip": skipped,
    }
    summary = f"✎ undo {step.name}: {'skipped' if skipped else 'done, recorded'} by an operator"
    call = _new_call(run, entry, flight, step.do, CLOSE_NESTED, call_arguments, summary)
    key = idempotency_key(run.saga_id, entry.id, entry.generation, "undo")
    retry = SKIP_RETRY if skipped else call.retry
    earlier = 0 if entry.undo is None else entry.undo.min_attempts
    return replace(call, op="undo", key=key, retry=retry, earlier_attempts=earlier, heartbeat=None, cancellable=False)


def _skip_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    if builtin_actions.has_nested_undo(run, entry):
        return _close_nested_call(run, entry, flight)
    step = run.step(entry)
    assert entry.undo is not None
    operation = current_alternate(step, entry.undo)
    call = _new_call(run, entry, flight, operation, SKIP_RESTORE, {}, f"✎ undo {step.name}: skipped by an operator")
    guard = GuardSpec(_required_connection(operation))
    earlier = entry.undo.min_attempts
    return replace(call, guard=guard, retry=SKIP_RETRY, earlier_attempts=earlier, heartbeat=None, cancellable=False)


def _confirm_call(run: SagaRun, entry: Entry, flight: Flight) -> Call:
    step, confirm = run.step(entry), entry.confirm
    assert confirm is not None
    assert step.confirm is not None
    operation = step.confirm
    summary = f"✔ confirm {step.name}"
    if flight.call_kind == "confirm-mark":
        call = _new_call(run, entry, flight, replace(operation, task_queue=None), MARK_CONFIRM, {}, summary)
        return replace(call, guard=GuardSpec(_required_connection(step.do), "mark", True), local=True)
    confirm_arguments = prepare_confirm(run, entry)
    guard = None
    if operation.connection is not None:
        is_own = step.do.connection == operation.connection
        guard = GuardSpec(operation.connection, "decide" if is_own else "own", True, images=is_own and step.do.images)
    call = _new_call(run, entry, flight, operation, operation.uses, confirm_arguments, summary)
    retry = retries.operation_retry(operation, confirm)
    return replace(call, retry=retry, guard=guard, earlier_attempts=confirm.min_attempts)


def _new_call(
    run: SagaRun,
    entry: Entry,
    flight: Flight,
    operation: Operation,
    uses: str,
    action_arguments: Mapping[str, Any],
    summary: str,
    **fields: Any,
) -> Call:
    """``fields`` are those that differ from the usual ones."""
    step = run.step(entry)
    op = _OPERATION_OF.get(flight.call_kind, flight.call_kind)
    engine = uses in (SEAL, RECORD_RESULT, SKIP_RESTORE, CLOSE_NESTED, MARK_UNDO, MARK_CONFIRM)
    suffix, number = ("", 0) if op in ("do", "probe", "seal") else (op, 0)
    if op == "undo" and entry.undo is not None and not engine:
        number = entry.undo.alternate
    believed = believed_promises(run, operation)
    reads = op == "probe" or is_read(step)
    usual: dict[str, Any] = {
        "retry": retries.with_at_least_one_attempt(operation.retry),
        "heartbeat": operation.heartbeat,
        "task_queue": operation.task_queue,
        "priority": step.priority,
        "fairness_key": _fairness_key_or_none(run, entry, flight),
        "local": engine or operation.local,
        "cancellable": op in ("do", "probe"),
        "remembers_rejections": not operation.guarded and (believed.remembers_rejections or reads),
        "reads": reads,
        "own_retry": operation.own_retry and not retries.is_retried_without_limit(run, step, op),
        "sensitive_texts": run.plan.sensitive_texts(run.input),
    }
    return Call(
        id=flight.id,
        entry=entry.id,
        step=step.id,
        op=op,  # pyright: ignore[reportArgumentType]
        key=idempotency_key(run.saga_id, entry.id, entry.generation, suffix, number),  # pyright: ignore[reportArgumentType]
        generation=entry.generation,
        action=uses,
        arguments=action_arguments,
        summary=summary,
        timeout=operation.timeout,
        **(usual | fields),
    )


def _fairness_key_or_none(run: SagaRun, entry: Entry, flight: Flight) -> str | None:
    """The fairness key. It only orders work, so an error in it fails a forward attempt but never blocks a rollback."""
    try:
        return expression_fields.fairness_key(run, entry)
    except evaluation.DefinitionError:
        if flight.call_kind == "do":
            raise
        return None


def forget_unsent_arguments(entry: Entry, kind: CallKind) -> None:
    """Drop arguments that no payload carries: no state with them could be handed on. A retry evaluates them again."""
    state = {"do": entry, "undo": entry.undo, "confirm": entry.confirm}.get(kind)
    if state is not None and state.min_attempts == 0:
        state.arguments = None


def guard_decides_first(step: StepDefinition, operation: Operation) -> bool:
    """True when the operation does not run on the connection of the step's guard, so that the guard decides first."""
    return step.do.guarded and operation.connection != step.do.connection


def _confirmed_undo(
    run: SagaRun, entry: Entry, step: StepDefinition, key: str
) -> tuple[str, Mapping[str, Any]] | Literal["elsewhere"] | None:
    """The action and arguments that undo a confirmed effect in the guard's transaction.

    ``elsewhere``: it uses another connection. None if there is none, or it cannot be needed.
    """
    operation = step.compensate.confirmed if step.compensate else None
    if operation is None or step.confirm is None:
        return None
    if operation.connection != step.do.connection:
        return "elsewhere"
    confirmed = entry.confirm is not None and entry.confirm.state == "DONE"
    override = entry.undo.override if confirmed and entry.undo is not None else None
    place = "compensate.confirmed"
    try:
        return operation.uses, arguments.operation_arguments(run, entry, place, operation, key, override)
    except evaluation.DefinitionError:
        if confirmed:
            raise
        return None  # the effect is not confirmed, so an error in the undo of a confirmed effect must not block


def compact_json(call_arguments: Mapping[str, Any]) -> str:
    """Arguments as compact JSON, for a command line."""
    return encode_json(dict(call_arguments)).decode()


def _required_connection(operation: Operation) -> str:
    assert operation.connection is not None
    return operation.connection


def reissue(run: SagaRun, at: float) -> list[Command]:
    """The commands of everything in flight, in their original order."""
    commands: list[Command] = []
    for id, (fires_at, summary) in run.timers.items():
        commands.append(StartTimer(id, max(0.0, fires_at - at), summary))
    commands += locks.reissue(run)
    for flight in run.flights.values():
        entry = run.entry(flight.entry)
        if entry is None:
            continue
        if flight.kind == "call":
            commands.append(_rest_of_call(build_call(run, entry, flight), entry, flight, at))
            if flight.cancelled:
                commands.append(CancelCall(flight.id))
        elif flight.kind == "saga":
            if flight.call_kind == "undo":
                commands.append(builtin_actions.undo_command(run, entry))
                continue
            if flight.call_kind == "seal":
                commands.append(builtin_actions.roll_back_command(run, entry))
                continue
            commands.append(builtin_actions.start_command(run, entry))
            if flight.cancelled:
                commands.append(
                    CancelSaga(flight.id, builtin_actions.child_saga_id(run, entry), "the parent saga is rolled back")
                )
        elif flight.fires_at is not None:
            commands.append(StartTimer(flight.id, max(0.0, flight.fires_at - at), flight.summary))
    return commands


def _rest_of_call(call: Call, entry: Entry, flight: Flight, at: float) -> Call:
    """A call that goes on after the attempts that another workflow has made of it: with the rest of its retries."""
    if not flight.attempts_made:
        return call
    delay = max(0.0, (flight.due_at or at) - at)
    retry = remaining_retry(call.retry, flight.attempts_made, at + delay - flight.started_at)
    earlier = call.earlier_attempts + (
        flight.attempts_made if attempt_counts.counting_operation(entry, flight) is None else 0
    )
    return replace(call, retry=retry, earlier_attempts=earlier, delay=delay)


def lost_calls(run: SagaRun, at: float) -> list[CallEnded]:
    """End events with outcome unknown for the calls in flight whose results are lost."""
    failure = Failure("Infrastructure", "the run was terminated while this was in flight")
    outcome = Outcome("unknown", failure=failure, infrastructure=True)
    return [CallEnded(flight.id, outcome, at) for flight in run.flights.values() if flight.kind == "call"]
