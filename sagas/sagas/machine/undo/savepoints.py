"""Savepoints: a failure undoes only what follows the nearest savepoint, and runs that again (rule 18).

A savepoint has no step parallel to it, so when it is done, every other step has settled before it or follows it. The
rollback to it is an ordinary one that stops there; then the steps after it start again, with the next generation of
their entries. A cancel, the deadline and a compensation that parks go past the savepoint: everything is undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import is_nested, is_read
from sagas.machine import corrections, result_rooms
from sagas.machine.earlier import effects
from sagas.machine.internal_events import CompensateStep
from sagas.machine.state import Entry, SagaRun, StepRecord

TIMER = "savepoint"

REPEATED_CAUSES = ("rejected", "failed", "unknown")
"""The failures of a step that another run may not have. A deterministic or a late one would only occur again."""


def savepoint_for(run: SagaRun, cause: Mapping[str, Any]) -> str | None:
    """The nearest savepoint before the failed step that allows another run; None: everything is undone."""
    step = str(cause.get("step") or "").partition("#")[0]
    if cause["kind"] not in REPEATED_CAUSES:
        return None
    for id in reversed(run.plan.steps):
        followers = run.plan.savepoints.get(id)
        savepoint = run.plan.steps[id].savepoint
        if followers is None or savepoint is None or step not in followers:
            continue
        if run.steps[id].settled and run.steps[id].repetitions + 1 < savepoint.attempts:
            return id
    return None


def rollback_covers(run: SagaRun, step: str) -> bool:
    """Return whether the rollback undoes the step: it stops at the savepoint, if there is one."""
    return run.savepoint is None or step in run.plan.savepoints[run.savepoint]


def covered_steps(run: SagaRun) -> list[str]:
    """The steps that the rollback undoes."""
    return [id for id in run.plan.steps if rollback_covers(run, id)]


def must_seal(run: SagaRun, entry: Entry) -> bool:
    """True for a rejected or failed entry: its key is closed in the guard before the next generation starts."""
    step = run.step(entry)
    if run.savepoint is None or entry.looked_up or entry.resolved or is_read(step) or is_nested(step):
        return False
    if entry.undo is not None and entry.undo.state == "DONE":
        return False  # its undo has closed the key
    return step.do.guarded and entry.outcome in ("rejected", "failed")


def give_up(run: SagaRun) -> None:
    """Go past the savepoint: also undo the steps before it."""
    if run.savepoint is None:
        return
    covered, run.savepoint = run.plan.savepoints[run.savepoint], None
    for timer in (TIMER, "deadline"):
        run.cancel_timer(timer)
    run.deadline_at = None
    if not run.compensating:
        return
    more = [id for id in reversed(run.plan.steps) if id not in covered]
    run.compensations_open += len(more)
    for id in more:
        run.steps[id].dependants_open = sum(not run.steps[other].undo_closed for other in run.plan.dependants[id])
    for id in more:
        if run.steps[id].dependants_open == 0:
            run.post(CompensateStep(id))


def give_up_if_parked(run: SagaRun) -> None:
    """A parked undo goes past the savepoint: nothing runs again before an operator has decided."""
    if run.savepoint is not None and any(parked.op == "undo" for parked in run.parked.values()):
        give_up(run)


def run_again_after_wait(run: SagaRun) -> None:
    """Run the steps after the savepoint again, after its `wait`. All of them have been undone."""
    assert run.savepoint is not None
    if TIMER in run.timers:
        return
    savepoint = run.plan.steps[run.savepoint].savepoint
    if savepoint is not None and savepoint.wait > 0:
        run.start_timer(TIMER, savepoint.wait, f"run again what follows {run.plan.steps[run.savepoint].name}")
    else:
        run_again(run)


def run_again(run: SagaRun) -> None:
    """Start the steps after the savepoint again, as the next generation."""
    assert run.savepoint is not None
    followers, savepoint = run.plan.savepoints[run.savepoint], run.steps[run.savepoint]
    savepoint.repetitions += 1
    kept = {id: corrections.of_entries(run, run.steps[id]) for id in run.plan.steps if id in followers}
    for id in kept:
        _reset_step(run, id, followers)
        run.steps[id].corrections = kept[id]
    run.ready = [id for id in run.plan.steps if id in followers and run.steps[id].needs_open == 0]
    run.phase, run.compensating, run.reason, run.savepoint = "forward", False, None, None
    run.change_state("RUNNING", savepoint.id)


def _reset_step(run: SagaRun, id: str, followers: set[str]) -> None:
    """An empty record. A step that had begun gets the next generation; its results leave the names of expressions."""
    old = run.steps[id]
    run.steps_open += old.settled
    run.step_values.pop(id, None)
    effects.forget(run, id)
    generation = max((entry.generation for entry in old.entries), default=old.generation - 1) + 1
    for entry in old.entries:
        run.children.pop(entry.id, None)
    result_rooms.forget_step(run, old)
    needs_open = sum(need in followers for need in run.plan.steps[id].needs)
    run.steps[id] = StepRecord(id, needs_open=needs_open, generation=generation)
