"""The built-in actions that the machine performs without a call: `require`, `pass`, `finish`, `wait` and `saga`.

A nested saga is a step that runs as a child saga, whose id is the step's key (rule 14).
"""

from __future__ import annotations

from typing import Any

from sagas.definition import times
from sagas.definition.model import is_nested
from sagas.definition.saga_ids import check_saga_name
from sagas.definition.sensitive_paths import sensitive_paths
from sagas.errors import UsageError
from sagas.machine import image_scopes
from sagas.machine.earlier import effects
from sagas.machine.expressions import arguments, evaluation
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.expressions.unmet_requirement import unmet_requirement
from sagas.machine.state import Entry, Flight, LookupPurpose, SagaRun
from sagas.protocol.messages import CancelSaga, RollBackSaga, SagaEnded, SignalReceived, StartSaga, UndoSaga
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import REFUSED_TYPE, idempotency_key
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS
from sagas.text.shell import saga_command
from sagas.text.shortening import shorten_middle

NESTED = "saga"
"""The action that runs a nested saga."""

REJECTED_TYPE = "Rejected"
"""The failure type of a rejection; a wait that timed out has another one."""

WAIT_SUFFIX = "~wait"
"""After the id of its entry: the id of the timer of a `wait`."""


def evaluate(run: SagaRun, entry: Entry) -> Outcome:
    """The outcome of an action that is known at once. Raises DefinitionError."""
    match run.step(entry).do.uses:
        case "require":
            return evaluate_require(run, entry)
        case "finish":
            return evaluate_finish(run, entry)
    return Outcome.done(_computed_arguments(run, entry).get("result"))  # `pass`


def evaluate_require(run: SagaRun, entry: Entry) -> Outcome:
    """`require`: evaluate a condition; false is a rejection."""
    step_arguments = _computed_arguments(run, entry)
    if _condition(run, entry, "that", step_arguments.get("that")):
        return Outcome.done(None)
    if message := step_arguments.get("message"):
        return _rejected(str(message))
    return _rejected(unmet_requirement(run, entry), quotes=True)


def evaluate_finish(run: SagaRun, entry: Entry) -> Outcome:
    """`finish`: if the condition is true, the saga completes with the output; of parallel ones the first counts.

    It does not complete if an earlier run has gone further.
    """
    decided = run.earlier.decisions.get(entry.id)
    ends = (
        _condition(run, entry, "when", arguments.forward_argument(run, entry, "when")) if decided is None else decided
    )
    ends = ends and not any(effects.exist(run, id) for id in run.plan.finishes[entry.id])
    if ends and run.finished_by is None:
        run.output = arguments.forward_argument(run, entry, "output")
        run.finished_by = entry.id
    return Outcome.done(ends)


def forget_finish(run: SagaRun) -> None:
    """Forget the `finish` that has ended the forward phase, because the saga rolls back before its commit point."""
    if run.finished_by is not None and run.phase == "forward":
        run.finished_by = run.output = None


def _condition(run: SagaRun, entry: Entry, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        source = (run.step(entry).do.with_ or {}).get(name)
        place = f"{entry.id}.{name}"
        raise evaluation.wrong_value(run.plan, place, source, value, "is neither true nor false", run.input)
    return value


def start_wait(run: SagaRun, entry: Entry) -> Outcome | None:
    """`wait`: return the outcome if it is known already, else start a flight and return None."""
    step_arguments = _computed_arguments(run, entry)
    name = step_arguments.get("signal")
    try:
        if name is not None:
            early = run.signals.get(str(name))
            if early is not None:
                return signal_outcome(early)
            limit = step_arguments.get("timeout")
            length = None if limit is None else times.to_seconds(limit)
            summary = f"wait for {name}"
        elif step_arguments.get("until") is not None:
            length = times.to_seconds(max(0.0, times.parse_timestamp(step_arguments["until"]) - run.now))
            summary = f"wait until {step_arguments['until']}"
        else:
            length = times.to_seconds(step_arguments.get("for"))
            summary = f"wait {step_arguments.get('for')}"
    except ValueError as error:
        raise DefinitionError(f"{entry.id}: {error}") from None
    run.start_flight(entry.id + WAIT_SUFFIX, "wait", entry, "do", seconds=length, summary=summary)
    return None


def wait_timer_fired(run: SagaRun, entry: Entry) -> Outcome:
    """The outcome of a wait whose timer has fired."""
    step_arguments = entry.arguments or {}
    if step_arguments.get("signal") is None:
        return Outcome.done({"data": None, "by": None, "at": times.format_timestamp(run.now)})
    name, then = step_arguments["signal"], step_arguments.get("on_timeout", "reject")
    if then == "continue":
        return Outcome.done({"data": None, "by": None, "at": times.format_timestamp(run.now)})
    message = f"no {name} arrived within {step_arguments.get('timeout')}"
    if then == "park":
        return Outcome("failed", failure=Failure("Timeout", message), attempt=1, retryable=False, park_reason=message)
    return Outcome("rejected", failure=Failure("Timeout", message), attempt=1, retryable=False)


def accept_signal(run: SagaRun, event: SignalReceived) -> list[Entry]:
    """Store the first signal of a name; return the entries that were waiting for it."""
    if event.name in run.signals:
        return []
    run.signals[event.name] = {
        "data": event.data,
        "by": event.who,
        "at": times.format_timestamp(event.at),
        "reject": event.reject,
    }
    waiting: list[Entry] = []
    for flight in list(run.flights.values()):
        if flight.kind != "wait":
            continue
        entry = run.entry(flight.entry)
        if entry is not None and (entry.arguments or {}).get("signal") == event.name:
            run.end_timer_flight(flight)
            waiting.append(entry)
    return waiting


def signal_outcome(signal: dict[str, object]) -> Outcome:
    """The outcome of the wait that a signal completes."""
    if signal["reject"] is not None:
        return _rejected(str(signal["reject"]))
    return Outcome.done({"data": signal["data"], "by": signal["by"], "at": signal["at"]})


def forget_rejection(run: SagaRun, entry: Entry) -> None:
    """Drop the rejecting signal that ended this wait, so that it does not end the next one.

    A signal that arrived after the end of the wait still counts.
    """
    name = str((entry.arguments or {}).get("signal"))
    taken = (entry.error or {}).get("type") == REJECTED_TYPE
    if taken and run.signals.get(name, {}).get("reject") is not None:
        del run.signals[name]


def _computed_arguments(run: SagaRun, entry: Entry) -> dict[str, object]:
    if entry.arguments is None:
        entry.arguments = arguments.forward_arguments(run, entry, entry.override)
    return entry.arguments


def _rejected(message: str, *, quotes: bool = False) -> Outcome:
    failure = Failure(REJECTED_TYPE, shorten_middle(message, MAX_MESSAGE_CHARACTERS), quotes=quotes)
    return Outcome("rejected", failure=failure, attempt=1, retryable=False)


def start_child(run: SagaRun, entry: Entry) -> None:
    """Start the nested saga. Raises DefinitionError when its name or input cannot be evaluated."""
    if entry.arguments is None:
        entry.arguments = arguments.forward_arguments(run, entry, entry.override)
    command = start_command(run, entry)
    run.children[entry.id] = {
        "id": command.saga_id,
        "step": entry.id,
        "saga": command.saga,
        "state": "RUNNING",
    }
    run.start_flight(entry.id, "saga", entry, "do")
    run.emit(command)


def start_command(run: SagaRun, entry: Entry) -> StartSaga:
    step_arguments = entry.arguments or {}
    try:
        name = check_saga_name(step_arguments.get("name"))
    except UsageError as error:
        raise DefinitionError(f"{entry.id}: {error}") from None
    input = step_arguments.get("input")
    return StartSaga(
        entry.id,
        entry.id,
        name,
        child_saga_id(run, entry),
        input,
        run.generation,
        image_scopes.nested_scope(run, entry),
        run.earlier.exist or entry.outcome == "unknown",
        _begins_since(run, entry),
        sensitive=sensitive_paths(input, run.plan.sensitive_values(run.input)),
    )


def _begins_since(run: SagaRun, entry: Entry) -> float | None:
    """The earliest time at which an earlier run of the nested saga may have begun, see :class:`StartSaga`."""
    if entry.step in run.earlier.told_undone or entry.id in run.earlier.told_undone:
        return None
    times = [at for at in (run.started_at, run.earlier.since) if at is not None]
    return min(times, default=None)


def child_saga_id(run: SagaRun, entry: Entry) -> str:
    return idempotency_key(run.saga_id, entry.id, entry.generation)


def has_nested_undo(run: SagaRun, entry: Entry) -> bool:
    """True if the entry is undone by the undo of its nested saga."""
    step = run.step(entry)
    return is_nested(step) and step.compensate is None and entry.id in run.children


def forget_report(child: dict[str, Any]) -> None:
    """Drop the report of a nested saga that has no parked operations any more; see :mod:`sagas.machine.parked`."""
    child.pop("waits", None)
    child.pop("blocked", None)


def cancel_command(run: SagaRun, entry: Entry, message: str) -> CancelSaga:
    run.children[entry.id].pop("blocked", None)  # the cancel may unblock it; if not, it reports again
    return CancelSaga(entry.id, child_saga_id(run, entry), message)


def has_earlier_child(run: SagaRun, entry: Entry) -> bool:
    """True if an earlier run has started the nested saga of this entry, whose end tells what it has done.

    While a pivot behind it may be done, one that was started again goes on: it had completed before.
    """
    return entry.ahead and entry.id in run.children and not (run.phase == "forward" and was_started_again(run, entry))


def was_started_again(run: SagaRun, entry: Entry) -> bool:
    """True if the nested saga ahead repeats one that was deleted, so that more than its own end has come before."""
    return bool(run.earlier.children.get(entry.id, {}).get("repeats"))


def roll_back_child(run: SagaRun, entry: Entry, purpose: LookupPurpose) -> None:
    """Bring the nested saga that an earlier run has started to its end, to learn what it has done."""
    run.start_flight(f"{entry.id}~earlier", "saga", entry, "seal", purpose)
    run.emit(roll_back_command(run, entry))


def roll_back_command(run: SagaRun, entry: Entry) -> RollBackSaga:
    saga = str(run.children[entry.id]["saga"])
    return RollBackSaga(f"{entry.id}~earlier", entry.id, saga, child_saga_id(run, entry), _undo_reason(run))


def undo_command(run: SagaRun, entry: Entry) -> UndoSaga:
    saga = str(run.children[entry.id]["saga"])
    repeats = run.earlier.exist or (entry.undo is not None and entry.undo.min_attempts > 0)
    again = _start_to_cancel(run, entry)
    return UndoSaga(f"{entry.id}~undo", entry.id, saga, child_saga_id(run, entry), _undo_reason(run), repeats, again)


def _undo_reason(run: SagaRun) -> str:
    return str((run.reason or {}).get("message") or "the parent saga is rolled back")


def _start_to_cancel(run: SagaRun, entry: Entry) -> StartSaga | None:
    """The start of a nested saga whose run was deleted, to be cancelled at once; None if nobody knows its input."""
    try:
        # Its name is known, even if that depends on results which this run does not have.
        sent = entry.arguments
        input = sent.get("input") if sent else arguments.forward_argument(run, entry, "input")
    except DefinitionError:
        return None
    return StartSaga(
        entry.id,
        entry.id,
        str(run.children[entry.id]["saga"]),
        child_saga_id(run, entry),
        input,
        run.generation,
        image_scopes.nested_scope(run, entry),
        repeats=True,
        since=_begins_since(run, entry),
        cancelled=_undo_reason(run),
        sensitive=sensitive_paths(input, run.plan.sensitive_values(run.input)),
    )


def child_ended(run: SagaRun, entry: Entry, event: SagaEnded, flight: Flight) -> Outcome:
    """The outcome of the step after the end of the nested saga or of its undo."""
    child = run.children.get(entry.id)
    if child is not None:
        child["state"] = event.state
        forget_report(child)
    if event.view is not None and event.view.row_locks:
        run.child_row_locks = sorted({*run.child_row_locks, *event.view.row_locks})
    if event.state == "RESIDUE":
        nested = event.view.residue if event.view else ()
        run.residue += [{**row.to_json(), "saga": row.saga or child_saga_id(run, entry)} for row in nested]
    if flight.call_kind == "undo":
        return _undo_outcome(event)
    if event.state == "REFUSED" and may_have_run(run, entry):
        return _not_started_again(event, child_saga_id(run, entry))
    return _forward_outcome(event, child_saga_id(run, entry))


def may_have_run(run: SagaRun, entry: Entry) -> bool:
    """True if the nested saga may have effects from before it was started the last time."""
    return entry.outcome == "unknown" or entry.id in run.earlier.children


def _not_started_again(event: SagaEnded, saga_id: str) -> Outcome:
    reason = event.view.reason if event.view else None
    message = (
        f"the nested saga {saga_id} is not started again, and what it has done before is not undone: "
        f"{(reason and reason.message) or 'it was refused'}"
    )
    return Outcome("unknown", failure=Failure("Refused", message), retryable=False, park_reason=message)


def _forward_outcome(event: SagaEnded, saga_id: str) -> Outcome:
    view = event.view
    reason = view.reason if view else None
    output = view.output if view else None
    match event.state:
        case "COMPLETED":
            return Outcome.done(output)
        case "COMPENSATED":
            kind = "rejected" if reason and reason.kind == "rejected" else "failed"
            failure = Failure(
                (reason and reason.type) or "SagaCompensated",
                (reason and reason.message) or "the nested saga was compensated",
                reason.details if reason else {},
                quotes=reason is not None and reason.quotes is True,
            )
            return Outcome(kind, failure=failure, attempt=1, retryable=False)
        case "RESIDUE":
            if view is not None and (view.committed_at is not None or view.phase == "committed"):
                return Outcome.done(output)
            message = "the nested saga was closed with a residue"
            return Outcome("failed", failure=Failure("SagaResidue", message), attempt=1, retryable=False)
        case "REFUSED":
            message = (reason and reason.message) or "the nested saga was refused; none of its steps has run"
            failure = Failure(REFUSED_TYPE, message, {"cannot_heal": True})
            return Outcome("failed", failure=failure, attempt=1, retryable=False)
        case "TERMINATED":
            message = (
                f"the nested saga {saga_id} was terminated, or its run was deleted: continue a terminated one with "
                f"`{saga_command('resume', saga_id)}`; then `retry` takes its end, or starts a deleted one again"
            )
            message = (reason and reason.message) or message
            return Outcome("unknown", failure=Failure("Terminated", message), retryable=False, park_reason=message)


def _undo_outcome(event: SagaEnded) -> Outcome:
    if event.state in ("COMPENSATED", "RESIDUE"):
        return Outcome.done(None)
    why = f": {event.view.reason.message}" if event.view is not None and event.view.reason is not None else ""
    gone = "the undo of the nested saga was terminated, or its run was deleted"
    message = {
        "REFUSED": f"the nested saga refuses to be undone{why}",
        "TERMINATED": f"the nested saga is not undone{why}" if why else gone,
        "COMPLETED": "the nested saga is past its point of no return, so it was completed instead of undone",
    }.get(event.state, f"the undo of the nested saga ended {event.state}")
    return Outcome("failed", failure=Failure(event.state, message), retryable=False, park_reason=message)
