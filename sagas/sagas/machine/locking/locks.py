"""Semantic locks (rule 17): when a run requests them, what it does when they are not free, and when it releases them.

A semantic lock keeps other sagas from what this one has changed but not yet made final: a countermeasure against the
missing isolation of sagas (Garcia-Molina, Salem, "Sagas", 1987; Richardson, "Microservices Patterns", 2018, 4.3). All
keys are requested at once, and a saga that waits holds none of them, so sagas cannot wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.analysis.lock_keys import checked_lock_keys
from sagas.definition.times import format_timestamp
from sagas.machine.expressions import evaluation, expression_fields
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.internal_events import RequestRollback
from sagas.machine.lock_state import LockState
from sagas.machine.locking import row_locks
from sagas.machine.operator_record import note_decision
from sagas.machine.origin import origin_of
from sagas.machine.state import SagaRun
from sagas.protocol import undo_scopes
from sagas.protocol.locks import holder_id, owner_id
from sagas.protocol.messages import AcquireLocks, DecisionMade, LocksAnswered, ReleaseLocks
from sagas.protocol.origin import root_start_of
from sagas.protocol.waits import parked_hint
from sagas.text.shortening import and_more, join_names

LIMIT, QUESTION = "locks", "locks-question"
"""The timers: the end of `wait`, and the next question if no signal comes."""

TIMERS = (LIMIT, QUESTION)

ANSWER_LIMIT = 30.0
"""Seconds in which the lock database must answer a saga that does not wait (`wait: fail`)."""

FIRST_QUESTION, LAST_QUESTION = 30.0, 600.0
"""Seconds between two questions: the first interval, which doubles, and the longest. A signal normally comes first."""


SHORTEST_REST = 0.001
"""Seconds of a wait that are not worth another timer."""


def request_at_start(run: SagaRun) -> None:
    """Request the locks, unless they are taken `from` a later step."""
    if run.definition.locks is not None and run.definition.locks.from_ is None:
        _request(run)


def hold_back(run: SagaRun, step: str) -> bool:
    """True while this step, which could start, has to wait for the locks. The step of `from` requests them."""
    locks = run.definition.locks
    if locks is None or locks.from_ not in (None, step):
        return False
    if run.locks is None:
        _request(run)
    return not are_held(run) and not _goes_on_without(run)


def _goes_on_without(run: SagaRun) -> bool:
    """True past the commit point: nothing is undone for the lack of locks, which the saga may have released before a
    reset. One of which nobody knows whether it is past that needs them, unless it had released them.
    """
    earlier = run.earlier
    if not earlier.pivot_in_place:
        return run.committed
    return not earlier.commit_is_unknown or (run.locks is not None and run.locks.state == "RELEASED")


def hold_back_undo(run: SagaRun) -> bool:
    """True while the undo of a finished saga has to wait for the locks that the saga had."""
    earlier = run.locks
    if not run.undoing_finished or earlier is None or not earlier.keys:
        return False
    if not earlier.undo:
        holder = holder_id(run.saga_id, run.generation, undo=True)
        run.locks = LockState(earlier.keys, holder, run.now, undo=True)
        _ask(run, run.locks)
    return run.locks is not None and run.locks.state == "WAITING"


def waits(run: SagaRun) -> bool:
    """True while the run waits for its locks, so that it goes on by itself."""
    return run.locks is not None and run.locks.state == "WAITING"


def are_held(run: SagaRun) -> bool:
    """True if nothing has to wait for the locks of the saga, or it has none."""
    return run.definition.locks is None or (run.locks is not None and run.locks.state == "HELD")


def _request(run: SagaRun) -> None:
    definition = run.definition.locks
    assert definition is not None
    try:
        keys = checked_lock_keys(expression_fields.evaluate_lock_keys(run))
        holder = holder_id(run.saga_id, run.generation)
    except (DefinitionError, ValueError) as error:
        run.locks = LockState((), "", run.now, "RELEASED", in_flight=False)
        _give_up(run, "definition", evaluation.DEFINITION_FAILURE, str(error))
        return
    run.locks = LockState(keys, holder, run.now)
    if not keys:
        _hold(run, run.locks)
        return
    _start_limit(run, run.locks)
    _ask(run, run.locks)


def _start_limit(run: SagaRun, locks: LockState) -> None:
    run.start_timer(LIMIT, _remaining_wait(run, locks), "wait for the locks")


def _remaining_wait(run: SagaRun, locks: LockState) -> float:
    definition = run.definition.locks
    assert definition is not None
    waited = row_locks.waited(run, locks.requested_at) - locks.paused_seconds
    return (definition.wait or ANSWER_LIMIT) - waited


def continue_wait(run: SagaRun) -> None:
    """An operator's pause has ended: the rest of the wait begins if it would have been over by now."""
    locks = run.locks
    if locks is not None and waits(run) and not locks.undo and LIMIT not in run.timers:
        _start_limit(run, locks)


def _ask(run: SagaRun, locks: LockState) -> None:
    locks.in_flight, locks.changed = True, False
    run.emit(_acquire_command(run, locks))


def _acquire_command(run: SagaRun, locks: LockState) -> AcquireLocks:
    definition = run.definition.locks
    assert definition is not None
    patient = locks.undo or definition.wait > 0
    return AcquireLocks(definition.connection, locks.keys, owner_id(run.saga_id), locks.holder, patient, _start(run))


def _start(run: SagaRun) -> str:
    return root_start_of(origin_of(run))


def reissue(run: SagaRun) -> list[AcquireLocks]:
    """The request in flight."""
    return [_acquire_command(run, run.locks)] if run.locks is not None and run.locks.in_flight else []


def answered(run: SagaRun, event: LocksAnswered) -> None:
    """Handle the answer of the lock database. One that comes after the release is obsolete."""
    locks = run.locks
    if locks is None or not locks.in_flight:
        return
    locks.in_flight = False
    if event.answer == "granted" or (event.answer == "late" and locks.undo):
        # The undo was interrupted after it had released its locks: all is undone, so it needs them no more.
        _hold(run, locks)
    elif event.answer == "waiting":
        locks.blockers = list(event.blockers)
        if locks.changed:
            _ask(run, locks)
        else:
            wait = min(FIRST_QUESTION * 2 ** min(locks.questions, 10), LAST_QUESTION)
            run.start_timer(QUESTION, wait, f"ask again for {describe_keys(locks.keys)}")
    elif event.answer == "late" and run.earlier.pivot_in_place:
        _withdraw(run, locks)
    elif event.answer == "late":
        _give_up(run, "late", "AlreadyReleased", "the locks of this saga had been released before it requested them")
    else:
        locks.blockers = list(event.blockers)
        _refuse(run, locks)


def changed(run: SagaRun) -> None:
    """Ask again: another saga has released its locks."""
    locks = run.locks
    if locks is None or locks.state != "WAITING":
        return
    if locks.in_flight:
        locks.changed = True
        return
    run.cancel_timer(QUESTION)
    _ask(run, locks)


def timer_fired(run: SagaRun, id: str) -> None:
    """Handle one of the timers of the locks."""
    locks = run.locks
    if locks is None or locks.state != "WAITING":
        return
    if id == QUESTION:
        locks.questions += 1
        _ask(run, locks)
    elif _remaining_wait(run, locks) < SHORTEST_REST:
        _refuse(run, locks)
    elif run.operator_pause_at is None:
        _start_limit(run, locks)


def _refuse(run: SagaRun, locks: LockState) -> None:
    """The locks are not free in time. A saga that cannot go back asks again."""
    if not run.earlier.pivot_in_place:
        _give_up(run, "locked", "Locked", _refusal(locks))
    elif QUESTION not in run.timers and not locks.in_flight:
        run.start_timer(QUESTION, FIRST_QUESTION, f"ask again for {describe_keys(locks.keys)}")


def _hold(run: SagaRun, locks: LockState) -> None:
    locks.state, locks.held_at, locks.in_flight, locks.blockers = "HELD", run.now, False, []
    for timer in TIMERS:
        run.cancel_timer(timer)


def _refusal(locks: LockState) -> str:
    if not locks.blockers:
        return f"{describe_keys(locks.keys)} not obtained in time"
    first, others = _described(locks.blockers[0]), and_more(len(locks.blockers) - 1)
    hint = f"; {parked_hint(first['owner'])}" if first.get("parked") else ""
    return f"{first['key']} is held by {first['owner']} since {first['since']}{others}{hint}"


def describe_keys(keys: tuple[str, ...]) -> str:
    return join_names(keys, 1)


def _give_up(run: SagaRun, kind: str, type: str, message: str) -> None:
    """Roll back; without effects so far that ends the saga as COMPENSATED."""
    locks = run.locks
    details: dict[str, Any] = {}
    if locks is not None:
        details = {"keys": list(locks.keys), "blockers": [_described(blocker) for blocker in locks.blockers]}
        _withdraw(run, locks)
    run.post(RequestRollback({"kind": kind, "step": None, "type": type, "message": message, "details": details}))


def _described(blocker: Mapping[str, Any]) -> dict[str, Any]:
    return {**blocker, "since": format_timestamp(blocker["since"])}


def skip_refusal(run: SagaRun, decision: DecisionMade) -> str | None:
    """Why an operator cannot let the undo go on without its locks; None if it can."""
    if run.locks is None or not run.locks.undo or run.locks.state != "WAITING":
        return "no undo of the saga waits for its locks: there is nothing to decide"
    if decision.decision != "skip":
        return f"`{decision.decision}` is not possible for the locks of an undo, which waits for them; possible: skip"
    return None


def skip_wait(run: SagaRun, decision: DecisionMade) -> None:
    """The undo goes on without its locks; its request is withdrawn."""
    if run.locks is not None and skip_refusal(run, decision) is None:
        note_decision(run, decision)
        _withdraw(run, run.locks)


def stop_waiting(run: SagaRun) -> None:
    """The saga rolls back, so it does not need the locks that it waits for."""
    if run.locks is not None and run.locks.state == "WAITING" and not run.locks.undo:
        _withdraw(run, run.locks)


def release_at_commit(run: SagaRun) -> None:
    """The commit point is reached: `until: commit` ends."""
    definition = run.definition.locks
    if definition is not None and definition.until == "commit" and run.locks is not None:
        _withdraw(run, run.locks)


def release_at_end(run: SagaRun) -> None:
    """The saga is final: it releases its locks, and the row locks of its automatic compensations."""
    ends_scope = run.phase != "backward" and bool(run.parent) and undo_scopes.is_own(run.undo_scope, run.saga_id)
    rows = row_locks.connections(run) if ends_scope or not run.parent else ()
    if run.locks is not None and (run.locks.state == "WAITING" or run.locks.state == "HELD" or run.locks.release_again):
        _withdraw(run, run.locks, rows)
    elif rows:
        holder = holder_id(run.saga_id, run.generation)
        run.emit(
            ReleaseLocks(owner_id(run.saga_id), holder, row_locks=rows, undo_scope=run.undo_scope, start=_start(run))
        )


def doubt_release(run: SagaRun) -> None:
    """A new run continues a terminated one: what that one was releasing is released again."""
    if run.locks is not None and run.locks.state == "RELEASED":
        run.locks.release_again = True


def _withdraw(run: SagaRun, locks: LockState, rows: tuple[str, ...] = ()) -> None:
    definition = run.definition.locks
    assert definition is not None
    connection = definition.connection if locks.keys else None
    locks.state, locks.in_flight, locks.release_again = "RELEASED", False, False
    for timer in TIMERS:
        run.cancel_timer(timer)
    if connection is not None or rows:
        scope = run.undo_scope if rows else ""
        run.emit(ReleaseLocks(owner_id(run.saga_id), locks.holder, connection, rows, scope, _start(run)))
