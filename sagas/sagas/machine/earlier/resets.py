"""The arrival of what a worker has looked up about earlier runs, after a reset or when a lost run is resumed.

Every entry continues at the highest generation that it has reached (rule 8): the guard has closed the earlier ones, and
an undo of one of them would leave the effect of the highest. Once the pivot is done, nothing is undone (rule 5), also
while the run does not know it yet.
"""

from __future__ import annotations

from sagas.machine.earlier import known_steps, operators
from sagas.machine.earlier.doubts import doubt_open_calls
from sagas.machine.failure_reasons import failure_message
from sagas.machine.internal_events import CompensationSettled, StartAttempt
from sagas.machine.state import Entry, OperationState, SagaRun
from sagas.protocol.messages import RunWasReset


def park_instead(run: SagaRun, entry: Entry) -> None:
    """Park an entry that has failed, because the saga was, or may have been, past its commit point before this run."""
    was = "nobody knows whether the saga was" if run.earlier.commit_is_unknown else "the saga was"
    message = failure_message(entry, "do")
    run.park(entry, "do", f"{was} past its point of no return before this run, so nothing is undone: {message}")


def run_was_reset(run: SagaRun, event: RunWasReset) -> None:
    """Take over what the guards know. An entry whose call is in flight catches up when the call ends, see
    :func:`is_behind`.
    """
    if run.finished:
        return
    earlier = run.earlier
    earlier.exist = True
    earlier.state_is_lost = earlier.state_is_lost or event.state_is_lost
    earlier.records = dict(event.records)
    earlier.children = dict(event.children)
    earlier.in_guards = list(event.in_guards)
    earlier.open_effects = {id: open for id, open in event.in_guards.items() if open >= max(run.generation, 1)}
    earlier.undone = dict(event.undone)
    earlier.undecided_undos = {
        id: generation
        for id, generation in event.undecided_undos.items()
        if generation > earlier.told_undone.get(id, 0)
    }
    earlier.decisions = dict(event.decisions)
    earlier.residue, earlier.reason = list(event.residue), event.reason
    decided = [row for row in event.operator if row not in run.operator]
    run.operator = sorted([*decided, *run.operator], key=lambda row: str(row["at"]))
    for id, generation in event.generations.items():
        earlier.generations[id] = max(generation, earlier.generations.get(id, 1))
    for record in run.steps.values():
        for entry in record.entries:
            flight = run.flights.get(entry.flight) if entry.flight else None
            doubt_open_calls(run, entry)
            if is_behind(run, entry) and (flight is None or flight.kind == "timer"):
                catch_up(run, entry)
                known_steps.correct_result(run, entry)
    for id in [id for id, parked in run.parked.items() if parked.op == "do"]:
        entry = run.entry(id)
        if entry is not None and entry.flight is None and operators.decided_entry(run, entry) is not None:
            run.unpark(entry)
            run.post(StartAttempt(entry))
    for id in [id for id, parked in run.parked.items() if parked.op == "undo"]:
        entry = run.entry(id)
        if entry is not None and entry.flight is None and operators.decided_undo(run, entry) is not None:
            run.unpark(entry)
            known_steps.repeat_undo_decision(run, entry)
            run.post(CompensationSettled(entry))
    if event.commit_point != "before" and not run.committed:
        earlier.pivot_in_place, earlier.commit_is_unknown = True, event.commit_point == "unknown"
        run.cancel_timer("deadline")
        run.deadline_at = None


def is_behind(run: SagaRun, entry: Entry) -> bool:
    """True while the entry is at an earlier generation than it has reached: the outcome of its call is not final."""
    return entry.generation < run.earlier.generations.get(entry.id, 1)


def catch_up(run: SagaRun, entry: Entry) -> None:
    """Continue the entry at its highest generation. Only the guard knows whether that has an effect."""
    entry.generation = run.earlier.generations[entry.id]
    if entry.outcome is None or entry.outcome == "done":
        return
    entry.outcome, entry.resolved, entry.looked_up = "unknown", False, False
    if entry.state in ("REJECTED", "FAILED", "NOTHING_TO_UNDO"):
        entry.state = "UNKNOWN"
    if entry.undo is not None and entry.undo.state == "NOTHING_TO_UNDO":
        entry.undo = OperationState()
