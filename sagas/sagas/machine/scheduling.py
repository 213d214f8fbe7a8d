"""The graph going forward: which steps may start, how many items at a time, and when a step is through."""

from __future__ import annotations

from sagas.machine import arguments, budget, forward
from sagas.machine.arguments import DefinitionFault
from sagas.machine.facts import Begin
from sagas.machine.run import Run
from sagas.machine.state import Entry, Operation, StepRecord


def advance(run: Run) -> None:
    """Start every step that is ready, in the order of the definition."""
    if run.phase == "backward" or not run.ready:
        return
    # While something waits for the pivot to decide, nothing new is begun beside it.
    if run.recorded is not None:
        return
    held: list[str] = []
    while run.ready:
        ready, run.ready = sorted(run.ready, key=run.plan.order.__getitem__), []
        for id in ready:
            step = run.plan.steps[id]
            beyond = step.kind == "retriable" or id in run.plan.after_pivot
            if beyond and (not run.committed or run.confirm_steps_open):
                held.append(id)
            else:
                # A skipped or empty step is through at once, and may make others ready.
                _start(run, run.steps[id])
    run.ready = held


def _start(run: Run, record: StepRecord) -> None:
    step = run.plan.steps[record.id]
    record.begun = True
    try:
        if not arguments.wanted(run, step):
            _skip(run, record)
            return
        if step.for_each is None:
            run.post(Begin(run.new_entry(record, None)))
            record.running += 1
            return
        record.items = arguments.items(run, step)
        run.kept_bytes += budget.size(record.items)
    except DefinitionFault as error:
        entry = run.new_entry(record, None)
        record.running += 1
        forward.attempt_ended(run, entry, arguments.fault(error), 0)
        return
    record.results = [None] * len(record.items)
    if not record.items:
        entry = run.new_entry(record, None)
        # DONE, but nothing of it ever ran: there is nothing to confirm and nothing to undo.
        entry.state, entry.outcome, entry.resolved = "DONE", "done", True
        entry.started_at = entry.ended_at = run.now
        entry.undo = Operation() if step.compensate is not None else None
        _settle(run, record)
        return
    start_items(run, record)


def restart(run: Run, record: StepRecord) -> None:
    """A person's retry of a step whose `if` or `for_each` could not be evaluated: it is evaluated again."""
    override = record.entries[0].override
    record.entries.clear()
    record.running = 0
    _start(run, record)
    if record.items is None:
        record.entries[0].override = override


def _skip(run: Run, record: StepRecord) -> None:
    entry = run.new_entry(record, None)
    entry.state = "SKIPPED"
    record.skipped = True
    entry.ended_at = run.now
    _settle(run, record)


def start_items(run: Run, record: StepRecord) -> None:
    """Begin items while there is room; going backward, or after a failed item, none."""
    step = run.plan.steps[record.id]
    if record.items is None or record.stopped or run.phase == "backward" or run.recorded is not None:
        return
    while record.running < step.max_parallel and len(record.entries) < len(record.items):
        entry = run.new_entry(record, len(record.entries))
        record.running += 1
        run.post(Begin(entry))


def closed(run: Run, entry: Entry, ok: bool) -> None:
    """Count a finished entry, make room for the next item, and see whether the whole step is through."""
    record = run.record(entry)
    record.running -= 1
    if not ok:
        record.stopped = True
        return
    record.closed += 1
    if record.items is None or entry.index is None:
        _settle(run, record)
        return
    if record.results is not None:
        good = entry.outcome == "done" and not entry.continued
        record.results[entry.index] = entry.result if good else None
    if record.closed == len(record.items):
        _settle(run, record)
    else:
        start_items(run, record)


def _settle(run: Run, record: StepRecord) -> None:
    record.settled = True
    run.steps_open -= 1
    arguments.publish(run, record)
    for dependant in run.plan.dependants[record.id]:
        other = run.steps[dependant]
        other.needs_open -= 1
        if other.needs_open == 0:
            run.ready.append(dependant)
