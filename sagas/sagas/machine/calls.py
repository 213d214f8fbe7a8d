"""From what the machine wants to know to the Call that asks for it.

A Call is a function of the state, so that a restored machine can ask everything in flight again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from sagas.definition.model import Execution, Retry, Step
from sagas.definition.model import Operation as Action
from sagas.machine import arguments
from sagas.machine.commands import Call, Guard
from sagas.machine.keys import step_key
from sagas.machine.run import Run
from sagas.machine.state import Ask, Entry, Flight, Operation, Purpose, StepState
from sagas.outcomes import OutcomeKind

MARK_UNDO = "saga.undo"
MARK_CONFIRM = "saga.confirm"
SEAL = "saga.seal"
WRITE = "saga.done"
"""Puts a person's `done` into the guard's row of the operation; a row that is there wins."""


def send(run: Run, entry: Entry, ask: Ask, purpose: Purpose = "", *, background: bool = False) -> None:
    """Ask, and note that an answer is owed. Raises DefinitionFault when the arguments cannot be evaluated."""
    flight = Flight(_id(run, entry, ask, purpose), "call", entry.id, ask, run.now, purpose)
    call = call_of(run, entry, flight)
    run.depart(flight.id, "call", entry, ask, purpose, background=background)
    run.emit(call)


def call_of(run: Run, entry: Entry, flight: Flight) -> Call:
    """The Call of a flight. Raises DefinitionFault when the arguments cannot be evaluated."""
    match flight.ask:
        case "do":
            return _do(run, entry, flight)
        case "probe":
            return _probe(run, entry, flight)
        case "seal":
            return _seal(run, entry, flight)
        case "write":
            return _write(run, entry, flight)
        case "undo" | "undo-mark":
            return _undo(run, entry, flight)
        case "confirm" | "confirm-mark":
            return _confirm(run, entry, flight)


def _id(run: Run, entry: Entry, ask: Ask, purpose: Purpose) -> str:
    if ask == "do":
        return entry.id
    if ask == "undo" and entry.undo is not None and entry.undo.alternate:
        return f"{entry.id}~undo.{entry.undo.alternate}"
    return f"{entry.id}~{ask}"


def _do(run: Run, entry: Entry, flight: Flight) -> Call:
    step = run.step(entry)
    if entry.arguments is None:
        entry.arguments = arguments.forward(run, entry)
    action = step.do
    return _call(
        run,
        entry,
        flight,
        action,
        action.uses,
        entry.arguments,
        step.name,
        retry=_left(entry, retry_of(step)),
        execution=step.execution,
        guard=Guard(action.connection, holds=action.holds) if action.connection else None,
        earlier_attempts=entry.made,
        cancellable=not step.pivot,
        at_most_once=asked_once(step),
    )


def _probe(run: Run, entry: Entry, flight: Flight) -> Call:
    step = run.step(entry)
    assert step.probe is not None
    action = step.probe.operation
    key = step_key(run.saga_id, entry.id, entry.generation)
    given = arguments.operation(run, entry, "probe", action, key)
    return _call(run, entry, flight, action, action.uses, given, f"? probe {step.name}")


def _seal(run: Run, entry: Entry, flight: Flight) -> Call:
    step = run.step(entry)
    call = _call(run, entry, flight, step.do, SEAL, {}, f"? did {step.name} happen")
    return replace(call, guard=Guard(_connection(step.do)), heartbeat=None, cancellable=False)


def _write(run: Run, entry: Entry, flight: Flight) -> Call:
    step = run.step(entry)
    op = "do"
    action, key, mode = step.do, step_key(run.saga_id, entry.id, entry.generation), "decide"
    made = entry.made
    if flight.purpose == "backward" and entry.undo is not None:
        op, action = "undo", alternate(step, entry.undo)
        mode = "own" if entry.undo.marked or not step.do.guarded else "decide"
        key = step_key(run.saga_id, entry.id, entry.generation, "undo", entry.undo.alternate)
        made = entry.undo.made
    elif flight.purpose == "not_done" and entry.confirm is not None and step.confirm is not None:
        op, action = "confirm", step.confirm
        mode = "own" if entry.confirm.marked or not step.do.guarded else "decide"
        key, made = step_key(run.saga_id, entry.id, entry.generation, "confirm"), entry.confirm.made
    given = {"result": (entry.decision or {}).get("result")}
    call = _call(run, entry, flight, action, WRITE, given, f"✎ {op} {step.name}: done, says a person")
    # The row is written where it decides: at the step's own guard, unless that has sent us elsewhere already.
    confirmed = (WRITE, given) if op == "undo" else None
    guard = Guard(_connection(action if mode == "own" else step.do), mode, confirmed=confirmed)
    return replace(call, op=op, key=key, guard=guard, earlier_attempts=made, heartbeat=None, cancellable=False)


def _undo(run: Run, entry: Entry, flight: Flight) -> Call:
    step, undo = run.step(entry), entry.undo
    assert undo is not None
    action = alternate(step, undo)
    key = step_key(run.saga_id, entry.id, entry.generation, "undo", undo.alternate)
    known = entry.outcome == "done"
    summary = f"↩ undo {step.name}"
    if flight.ask == "undo-mark":
        call = _call(run, entry, flight, replace(action, task_queue=None), MARK_UNDO, {}, summary)
        guard = Guard(_connection(step.do), "mark", known, _confirmed(run, entry, step, key))
        return replace(call, guard=guard, key=step_key(run.saga_id, entry.id, entry.generation, "undo"), local=True)
    if undo.arguments is None:
        place = "compensate.confirmed" if undo.use_confirmed else f"compensate.{undo.alternate}"
        undo.arguments = arguments.operation(run, entry, place, action, key, undo.override)
    guard = None
    if action.connection is not None:
        # Decided elsewhere already, an alternate at home has its own row too: the row of `undo` is taken by that word.
        if step.do.connection == action.connection and not undo.use_confirmed and not undo.marked:
            guard = Guard(action.connection, "decide", known, _confirmed(run, entry, step, key))
        else:
            guard = Guard(action.connection, "own", known)
    given, made = undo.arguments, undo.made
    return _call(run, entry, flight, action, action.uses, given, summary, guard=guard, earlier_attempts=made)


def _confirm(run: Run, entry: Entry, flight: Flight) -> Call:
    step, confirm = run.step(entry), entry.confirm
    assert confirm is not None
    assert step.confirm is not None
    action = step.confirm
    key = step_key(run.saga_id, entry.id, entry.generation, "confirm")
    summary = f"✔ confirm {step.name}"
    if flight.ask == "confirm-mark":
        call = _call(run, entry, flight, replace(action, task_queue=None), MARK_CONFIRM, {}, summary)
        return replace(call, guard=Guard(_connection(step.do), "mark", True), local=True)
    if confirm.arguments is None:
        confirm.arguments = arguments.operation(run, entry, "confirm", action, key, confirm.override)
    guard = None
    if action.connection is not None:
        guard = Guard(action.connection, "decide" if step.do.connection == action.connection else "own", True)
    given, made = confirm.arguments, confirm.made
    return _call(run, entry, flight, action, action.uses, given, summary, guard=guard, earlier_attempts=made)


def _call(
    run: Run,
    entry: Entry,
    flight: Flight,
    action: Action,
    uses: str,
    given: Mapping[str, Any],
    summary: str,
    *,
    guard: Guard | None = None,
    earlier_attempts: int = 0,
    retry: Retry | None = None,
    execution: Execution = "remote",
    cancellable: bool | None = None,
    at_most_once: bool = False,
) -> Call:
    step = run.step(entry)
    op = {"undo-mark": "undo", "confirm-mark": "confirm", "write": "do"}.get(flight.ask, flight.ask)
    engine = uses in (SEAL, WRITE, MARK_UNDO, MARK_CONFIRM)
    suffix, number = ("", 0) if op in ("do", "probe", "seal") else (op, 0)
    if op == "undo" and entry.undo is not None and not engine:
        number = entry.undo.alternate
    return Call(
        id=flight.id,
        entry=entry.id,
        step=step.id,
        op=op,  # pyright: ignore[reportArgumentType]
        key=step_key(run.saga_id, entry.id, entry.generation, suffix, number),  # pyright: ignore[reportArgumentType]
        generation=entry.generation,
        action=uses,
        arguments=given,
        summary=summary,
        timeout=action.timeout,
        retry=retry or _finite(action.retry),
        execution=execution,
        heartbeat=action.heartbeat,
        task_queue=action.task_queue,
        priority=step.priority,
        fairness_key=_fairness_key(run, entry, flight),
        local=engine or action.local,
        cancellable=op in ("do", "probe") if cancellable is None else cancellable,
        guard=guard,
        earlier_attempts=earlier_attempts,
        at_most_once=at_most_once,
    )


def _fairness_key(run: Run, entry: Entry, flight: Flight) -> str | None:
    """A mistake in the key shows when the step is tried; it only orders work, so it never holds up a way back."""
    try:
        return arguments.fairness_key(run, entry)
    except arguments.DefinitionFault:
        if flight.ask == "do":
            raise
        return None


def _finite(retry: Retry) -> Retry:
    return retry if retry.max_attempts >= 1 else replace(retry, max_attempts=1)


def asked_once(step: Step) -> bool:
    """The participant does not honour the key: no attempt may be repeated without a probe that says absent."""
    return not step.do.guarded and not step.do.idempotent and step.kind != "read"


def retry_of(step: Step) -> Retry:
    """The retries the platform makes within one forward call."""
    return replace(step.do.retry, max_attempts=1) if asked_once(step) else _finite(step.do.retry)


def _left(entry: Entry, retry: Retry) -> Retry:
    """The retries of a call that follows an attempt which did not count: what the calls before it have left."""
    if not entry.uncounted:
        return retry
    return replace(retry, max_attempts=max(retry.max_attempts - max(entry.made - entry.tries_from, 0), 1))


def alternate(step: Step, undo: Operation) -> Action:
    """The action that undoes the step now."""
    assert step.compensate is not None
    if undo.use_confirmed and step.compensate.confirmed is not None:
        return step.compensate.confirmed
    return step.compensate.alternates[undo.alternate]


def mark_first(step: Step, action: Action) -> bool:
    """True when the guard of the step and the action live in different places, so that the guard decides first."""
    return step.do.guarded and action.connection != step.do.connection


def _confirmed(
    run: Run, entry: Entry, step: Step, key: str
) -> tuple[str, Mapping[str, Any]] | Literal["elsewhere"] | None:
    """What undoes a confirmed effect in the same transaction, when it lives in the database of the guard."""
    action = step.compensate.confirmed if step.compensate else None
    if action is None or step.confirm is None:
        return None
    if action.connection != step.do.connection:
        return "elsewhere"
    known = entry.confirm is not None and entry.confirm.state == "DONE"
    override = entry.undo.override if known and entry.undo is not None else None
    try:
        return action.uses, arguments.operation(run, entry, "compensate.confirmed", action, key, override)
    except arguments.DefinitionFault:
        if known:
            raise
        return None  # a mistake in the undo of a confirmed effect holds up nothing as long as none is confirmed


def compact(given: Mapping[str, Any]) -> str:
    """Arguments as a person types them."""
    return json.dumps(dict(given), ensure_ascii=False, separators=(",", ":"))


def _connection(action: Action) -> str:
    assert action.connection is not None
    return action.connection


STATE_OF: dict[OutcomeKind, StepState] = {
    "done": "DONE",
    "rejected": "REJECTED",
    "failed": "FAILED",
    "unknown": "UNKNOWN",
    "late": "COMPENSATED",
}
"""The state of an entry whose forward attempts have ended like this."""
