"""Steps and items ahead of this run that an earlier run may have begun, and whose state nobody has.

Each of them is looked up before a rollback undoes anything, as one whose outcome is unknown: its guard tells, or a
probe, or the run of its nested saga, and what none of them knows is undone by its key. The pivot comes first, with what
it needs: if it is done, nothing is undone (rule 5), and the run goes on until it comes to it. If no state was lost, a
pivot is only looked up if its call was in flight or its outcome unknown, and another step if it has an open effect in a
guard all the same.

The steps are looked up in the order of the graph, so that the results of earlier ones are there for the expressions of
later ones, and so that nothing is asked about a step that needs one which certainly never happened.
"""

from __future__ import annotations

from collections.abc import Collection

from sagas.definition.model import StepDefinition, has_effect, is_nested
from sagas.expressions import compile_expression
from sagas.machine import result_rooms
from sagas.machine.earlier import known_steps
from sagas.machine.earlier.doubts import doubt
from sagas.machine.earlier.effects import are_in_state, item_numbers, left_record, recorded_entries
from sagas.machine.earlier.resets import park_instead
from sagas.machine.entry_ends import leave_to_rollback, register_operations
from sagas.machine.expressions import expression_fields
from sagas.machine.expressions.context import publish_result
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.internal_events import LookUpEffect, LookupVerdict
from sagas.machine.state import Entry, SagaRun, StepRecord


def must_find_pivot(run: SagaRun) -> bool:
    """True while a rollback has to wait, because the pivot may be done and this run has not come to it."""
    pivot = _pivot_ahead(run)
    if pivot is None:
        return False
    return are_in_state(run, pivot.id) or _may_have_run(run, pivot, _never_reached(run))


def is_seeking(run: SagaRun) -> bool:
    """True between the cause of a rollback and what has become of a pivot ahead of this run."""
    return run.pending_cause is not None and _pivot_ahead(run) is not None


def _pivot_ahead(run: SagaRun) -> StepDefinition | None:
    """The pivot, if an earlier run may have begun it, and this one has not."""
    pivot = run.plan.pivot
    if run.phase != "forward" or pivot is None or _has_begun(run, pivot):
        return None
    return pivot if run.earlier.state_is_lost or are_in_state(run, pivot.id) else None


def seek_pivot(run: SagaRun) -> bool:
    """Look up the next steps that the pivot needs, and at last the pivot. False if an earlier run never came to it."""
    pivot = run.plan.pivot
    assert pivot is not None
    needed = _needed_by(run, pivot)
    if not run.earlier.state_is_lost:
        known_steps.take_over_steps(run, needed)
    if _look_up_next(run, needed):
        return True
    if not must_find_pivot(run):
        return False
    left = left_record(run, pivot.id)
    _begin(run, run.steps[pivot.id], 1)
    [entry] = run.steps[pivot.id].entries
    if left is not None and left.entries:
        entry.arguments, entry.override = left.entries[0].arguments, left.entries[0].override
    run.steps[pivot.id].running = 1
    run.post(LookUpEffect(entry, "pivot"))
    return True


def is_idle(run: SagaRun) -> bool:
    """True if only an operator can help: nothing is in flight, or an open `wait` of this run does not tell whether a
    parked pivot ahead of it was made.
    """
    pivot = run.plan.pivot
    entries = [] if pivot is None else run.steps[pivot.id].entries
    return run.busy == 0 or any(entry.ahead and entry.id in run.parked for entry in entries)


def look_up_next(run: SagaRun, covered: Collection[str]) -> bool:
    """Look up the next of the steps that the rollback covers. False once there are no more."""
    return run.earlier.exist and _look_up_next(run, covered)


def answered(run: SagaRun, entry: Entry, verdict: LookupVerdict) -> None:
    """Keep what the look-up has told about an entry ahead: the rollback goes on with it."""
    leave_to_rollback(run, entry)
    record = run.record(entry)
    if verdict != "done":
        return
    entry.looked_up = True
    if record.results is not None and entry.index is not None:
        record.results[entry.index] = entry.result
    if not record.settled and all(entry.outcome == "done" for entry in record.entries):
        record.settled = True
        run.steps_open -= 1
        publish_result(run, record)


def pivot_is_done(run: SagaRun) -> None:
    """The pivot ahead is done: forget what was looked up for it, and go forward until this run comes to it."""
    run.earlier.pivot_in_place = True
    run.pending_cause = None
    run.cancel_timer("deadline")
    run.deadline_at = None
    for id in run.pending_entries:
        entry = run.entry(id)
        if entry is not None:
            park_instead(run, entry)
    run.pending_entries = []
    for record in list(run.steps.values()):
        if record.entries and all(entry.ahead or entry.taken_over for entry in record.entries):
            run.steps_open += record.settled
            run.step_values.pop(record.id, None)
            run.steps[record.id] = StepRecord(record.id, needs_open=record.needs_open, generation=record.generation)
    run.ready = [id for id, record in run.steps.items() if not record.begun and record.needs_open == 0]


def _look_up_next(run: SagaRun, steps: Collection[str]) -> bool:
    """Look up those of these steps whose needs are all looked up. False if there are no more."""
    excluded = _never_reached(run)
    waits = False
    settled: dict[str, bool] = {}
    for id in _in_order(run):
        record, step = run.steps[id], run.plan.steps[id]
        is_open = any(entry.ahead and _is_open(run, entry) for entry in record.entries)
        waits = waits or (is_open and id in steps)
        settled[id] = not is_open and all(settled[need] for need in step.needs)
        if id in steps and settled[id] and (missing := _missing_entries(run, step, excluded)):
            _begin(run, record, missing)
            for entry in record.entries[-missing:]:
                run.post(LookUpEffect(entry, "ahead"))
            settled[id], waits = False, True
    return waits


def _is_open(run: SagaRun, entry: Entry) -> bool:
    return entry.flight is not None or entry.id in run.parked


def _in_order(run: SagaRun) -> list[str]:
    """The steps, each after all that it needs."""
    order: list[str] = []
    needed = {id: len(run.plan.steps[id].needs) for id in run.plan.steps}
    ready = [id for id, needs in needed.items() if not needs]
    while ready:
        order += ready
        following: list[str] = []
        for id in ready:
            for dependant in run.plan.dependants[id]:
                needed[dependant] -= 1
                if needed[dependant] == 0:
                    following.append(dependant)
        ready = following
    return order


def _needed_by(run: SagaRun, step: StepDefinition) -> set[str]:
    needed: set[str] = set()
    open_ = list(step.needs)
    while open_:
        id = open_.pop()
        if id not in needed:
            needed.add(id)
            open_ += run.plan.steps[id].needs
    return needed


def _never_reached(run: SagaRun) -> set[str]:
    """The steps that no run has come to: one that they need has certainly not happened."""
    never: set[str] = set()
    for id in _in_order(run):
        for need in run.plan.steps[id].needs:
            if need in never or _is_absent(run, need):
                never.add(id)
    return never


def _is_absent(run: SagaRun, id: str) -> bool:
    """True for a step ahead that was looked up and has not happened, so that no run has gone on behind it.

    Only a guard is a proof, which had no record of it before: the `skip` of an operator closes a step there, and a run
    goes on behind it. One also goes on behind a step that its condition or an empty list has left out.
    """
    step, entries = run.plan.steps[id], [entry for entry in run.steps[id].entries if entry.ahead]
    may_be_left_out = step.on_failure == "continue" or step.if_ is not None or step.for_each is not None
    if may_be_left_out or not step.do.guarded or id in run.earlier.in_guards:
        return False
    return any(entry.resolved and entry.outcome in ("failed", "rejected") for entry in entries)


def _has_begun(run: SagaRun, step: StepDefinition) -> bool:
    return run.begun_entries(step.id) > 0


def _may_have_run(run: SagaRun, step: StepDefinition, never: Collection[str]) -> bool:
    if step.id in never or run.is_cut_off(step.id) or not has_effect(step):
        return False
    if is_nested(step) and not _items_of_earlier(run, step.id):
        return False  # an earlier run would have left a run of it
    return not _is_left_out(run, step)


def _is_left_out(run: SagaRun, step: StepDefinition) -> bool:
    """True if the step's `if` is false, whatever the steps ahead have returned."""
    if step.if_ is None or not _is_known(run, step.if_):
        return False
    try:
        return not expression_fields.should_run(run, step)
    except DefinitionError:
        return False


def _is_known(run: SagaRun, source: str) -> bool:
    """True if the expression reads only steps whose results are there, and are those of every run: a guard has kept
    them, while a read or a signal may have told the earlier run something else.
    """
    for path in (reference.path for reference in compile_expression(source).references):
        if path[0] == "steps" and (len(path) < 2 or path[1] not in run.step_values):
            return False
        if path[0] == "steps" and not run.plan.steps[path[1]].do.guarded:
            return False
    return True


def _missing_entries(run: SagaRun, step: StepDefinition, never: Collection[str]) -> int:
    """The number of entries of the step that an earlier run may have begun, and this one has not."""
    record, begun = run.steps[step.id], run.begun_entries(step.id)
    recorded = recorded_entries(run, step.id)
    if not run.earlier.state_is_lost or not _may_be_looked_up(run, step, never):
        return max(recorded - begun, 0)
    if step.for_each is None:
        return 1 - begun
    if record.items is None:
        try:
            result_rooms.keep_items(run, record, expression_fields.for_each_items(run, step))
        except DefinitionError:
            result_rooms.keep_items(run, record, [])  # only what the guards know of it
    return max(recorded, _item_count(run, record)) - begun


def _may_be_looked_up(run: SagaRun, step: StepDefinition, never: Collection[str]) -> bool:
    if not step.do.guarded and step.compensate is None and not is_nested(step):
        return False  # nothing tells of it, and nothing undoes it
    return _may_have_run(run, step, never) and not run.must_wait_for_commit(step.id)


def _item_count(run: SagaRun, record: StepRecord) -> int:
    """The number of items that an earlier run may have begun: those of the list, and those that have left traces."""
    step = run.plan.steps[record.id]
    listed = 0 if is_nested(step) else len(record.items or ())
    return max(listed, run.begun_entries(step.id), _items_of_earlier(run, record.id))


def _items_of_earlier(run: SagaRun, id: str) -> int:
    """The number of items of the step of which an earlier run has left traces; 1 for the step itself."""
    return max(item_numbers(run.earlier.generations, id), default=-1) + 1


def _begin(run: SagaRun, record: StepRecord, entries: int) -> None:
    step = run.plan.steps[record.id]
    del record.entries[run.begun_entries(step.id) :]
    record.begun = True
    if step.for_each is not None:
        if record.items is None:
            result_rooms.keep_items(run, record, [])
        record.results = record.results or []
    for _ in range(entries):
        entry = run.new_entry(record, None if record.items is None else len(record.entries))
        entry.ahead, entry.state, entry.started_at = True, "RUNNING", run.now
        if entry.id in run.earlier.children:
            run.children[entry.id] = {**run.earlier.children[entry.id]}
            run.children[entry.id].pop("repeats", None)
        register_operations(run, entry)
        doubt(run, entry)
    if record.results is not None:
        record.results += [None] * (len(record.entries) - len(record.results))
