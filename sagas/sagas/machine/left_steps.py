"""Steps that the runs before a reset had done, and that this run has not come to again.

A rollback takes them over as they were left: done ones are undone with their results and arguments, and of a call that
was in flight nobody knows how it has ended. Without that their effects would stay, known to no view.

That needs the state of those runs, which a query of a closed run returns. :mod:`sagas.machine.undo.steps_ahead` covers
the steps of a run that was deleted: its state is lost, so there is nothing to take over, only guards to be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sagas.definition.model import has_effect, is_nested
from sagas.machine import forward
from sagas.machine.doubted_rejections import doubt
from sagas.machine.expressions.context import publish_result
from sagas.machine.snapshot import load_run
from sagas.machine.state import Entry, SagaRun, StepRecord
from sagas.text.records import pack_record, restore_record


def take_over(run: SagaRun) -> None:
    """At the start of a rollback: take over the steps that this run has not begun."""
    for id, packed in run.earlier.records.items():
        if id in run.steps and not run.steps[id].begun:
            _take_over(run, restore_record(StepRecord, packed))
    run.earlier.records = {}


def _take_over(run: SagaRun, left: StepRecord) -> None:
    for entry in left.entries:
        if entry.id in run.earlier.children:
            run.children[entry.id] = dict(run.earlier.children[entry.id])
    here = run.steps[left.id]
    run.steps[left.id] = record = StepRecord(
        left.id,
        needs_open=here.needs_open,
        items=left.items,
        entries=left.entries,
        settled=left.settled,
        begun=True,
        results=left.results,
        generation=left.generation,
    )
    if record.settled and record.entries:
        run.steps_open -= 1
        publish_result(run, record)


def correct_result(run: SagaRun, entry: Entry) -> None:
    """Let an entry that goes on with a later generation have the result of that one, if a run before has left it.

    Only the guard has the results of guarded steps.
    """
    packed = run.earlier.records.get(entry.step)
    if packed is None or run.step(entry).do.guarded or entry.state == "RUNNING":
        return
    for left in restore_record(StepRecord, packed).entries:
        if left.id == entry.id and left.generation == entry.generation and left.outcome == "done":
            entry.outcome, entry.result, entry.arguments = "done", left.result, left.arguments
            if left.undo is not None:
                entry.undo = left.undo


@dataclass(frozen=True, slots=True)
class LeftState:
    """The progress of a run before a reset, from the snapshot of its machine.

    ``records`` are the steps that it has begun, and ``children`` their nested sagas. A pivot that has not ended is none
    of them: a rollback cannot wait for it.
    """

    records: dict[str, Any]
    children: dict[str, Any]
    generations: dict[str, int]
    committed: bool
    goes_backward: bool

    @staticmethod
    def of(snapshot: Mapping[str, Any]) -> LeftState:
        run = load_run(snapshot)
        goes_backward = run.phase == "backward" and run.savepoint is None
        is_past = run.committed and not goes_backward
        run.phase = "backward"  # what is in flight ends as at the start of a rollback
        entries = [entry for record in run.steps.values() for entry in record.entries]
        generations = dict(run.earlier.generations)
        for entry in entries:
            generations[entry.id] = max(entry.generation, generations.get(entry.id, 1))
            _end_calls(run, entry)
        left = {
            id: pack_record(record)
            for id, record in run.steps.items()
            if any(_is_left(run, entry) for entry in record.entries)
        }
        return LeftState(
            left,
            {entry.id: run.children[entry.id] for entry in entries if entry.id in run.children and entry.step in left},
            {id: generation for id, generation in generations.items() if generation > 1},
            is_past,
            goes_backward,
        )


def _is_left(run: SagaRun, entry: Entry) -> bool:
    step = run.step(entry)
    return entry.state != "PENDING" and (entry.outcome == "done" or not (step.pivot and is_nested(step)))


def _end_calls(run: SagaRun, entry: Entry) -> None:
    """End what is in flight. Nobody will say how a call has ended, so its outcome is unknown."""
    flight = run.flights.get(entry.flight) if entry.flight else None
    kind = flight.call_kind if flight is not None and flight.kind == "call" else None
    if kind in ("do", "write") and has_effect(run.step(entry)):
        doubt(run, entry)
    if flight is not None and flight.kind == "saga" and flight.call_kind == "do":
        entry.ahead = True  # it goes on by itself, so its end is looked up
        doubt(run, entry)
    if entry.state in ("RUNNING", "PARKED"):
        forward.leave_to_rollback(run, entry)
    if entry.undo is not None and entry.undo.state in ("RUNNING", "PARKED"):
        entry.undo.state = "PENDING"
        if kind == "undo":
            doubt(run, entry.undo)
    entry.flight = entry.decision = None
