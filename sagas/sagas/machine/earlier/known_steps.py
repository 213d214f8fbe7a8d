"""Steps and items ahead of this run, in the state in which earlier runs have left them.

A query of a closed run returns its state. A rollback takes the steps over: done ones are undone with their results and
arguments, and of a call that was in flight nobody knows how it has ended. Without that their effects would stay, known
to no view.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.definition.model import has_effect
from sagas.machine.earlier import operators
from sagas.machine.earlier.doubts import doubt
from sagas.machine.entry_ends import STATE_BY_OUTCOME, leave_to_rollback
from sagas.machine.expressions.context import publish_result
from sagas.machine.snapshot import load_run
from sagas.machine.state import Entry, SagaRun, StepRecord
from sagas.text.records import pack_record, restore_record


def take_over(run: SagaRun) -> None:
    """At the start of a rollback: take over the steps and items that this run has not begun, and what an operator has
    left behind of them.
    """
    for id, packed in run.earlier.records.items():
        if id in run.steps:
            _take_over(run, restore_record(StepRecord, packed))
    for record in run.steps.values():
        for entry in record.entries:
            repeat_undo_decision(run, entry)
    begun_here = {row["step"] for row in run.earlier.residue if _is_begun_here(run, row["step"])}
    run.residue += [row for row in run.earlier.residue if row["step"] not in begun_here and row not in run.residue]
    run.earlier.records = {}
    run.earlier.residue = []
    run.earlier.decisions = {}


def repeat_undo_decision(run: SagaRun, entry: Entry) -> None:
    """End the undo of an entry of this run as an operator has decided in an earlier run."""
    told = operators.decided_undo(run, entry)
    if told is None or entry.undo is None or entry.taken_over:
        return
    entry.undo = told
    entry.state = "COMPENSATED" if told.state == "DONE" else STATE_BY_OUTCOME[entry.outcome or "unknown"]
    operators.take_residue(run, entry)


def take_over_steps(run: SagaRun, ids: Collection[str]) -> None:
    """Take over those of these steps that this run has not begun: an undecided pivot ahead of it needs them."""
    for id in run.earlier.records:
        here = run.steps.get(id)
        if id in ids and here is not None and not here.settled and run.begun_entries(id) == 0:
            _take_over(run, restore_record(StepRecord, run.earlier.records[id]))


def _is_begun_here(run: SagaRun, id: str) -> bool:
    """True for an entry that this run has begun itself, so that its own rollback tells what stays of it."""
    entry = run.entry(id)
    return entry is not None and entry.state not in ("PENDING", "SKIPPED") and not entry.taken_over


def _take_over(run: SagaRun, left: StepRecord) -> None:
    here = run.steps[left.id]
    begun = run.begun_entries(left.id)
    if begun >= len(left.entries):
        return
    for entry in left.entries[begun:]:
        entry.taken_over = True
        if entry.id in run.earlier.children:
            run.children[entry.id] = dict(run.earlier.children[entry.id])
    was_settled = here.settled
    _join(here, left, begun)
    here.begun = True
    if begun == 0:
        here.settled, here.generation = left.settled or was_settled, left.generation
    if here.settled and not was_settled:
        run.steps_open -= 1
        publish_result(run, here)


def _join(record: StepRecord, older: StepRecord, begun: int) -> None:
    """Add the entries of an older record behind those that this one has begun."""
    record.entries = record.entries[:begun] + older.entries[begun:]
    for name in ("items", "results"):
        own, added = getattr(record, name), getattr(older, name)
        setattr(record, name, added if own is None or added is None else own[:begun] + added[begun:])


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

    ``records`` are the steps that it has begun, and ``children`` their nested sagas. ``undone``: the entries whose
    undo has ended, with their generations. ``decisions``: see :class:`sagas.machine.earlier_runs.EarlierRuns`.
    """

    records: dict[str, Any]
    children: dict[str, Any]
    generations: dict[str, int]
    undone: dict[str, int]
    decisions: dict[str, bool]
    committed: bool
    goes_backward: bool
    residue: list[dict[str, Any]]
    operator: list[dict[str, Any]]
    reason: dict[str, Any] | None

    @staticmethod
    def of(snapshot: Mapping[str, Any]) -> LeftState:
        run = load_run(snapshot)
        goes_backward = run.phase == "backward" and run.savepoint is None
        was_past = run.earlier.pivot_in_place and not run.earlier.commit_is_unknown
        is_past = (run.committed or was_past) and not goes_backward
        run.phase = "backward"  # what is in flight ends as at the start of a rollback
        entries = [entry for record in run.steps.values() for entry in record.entries]
        generations = dict(run.earlier.generations)
        for entry in entries:
            generations[entry.id] = max(entry.generation, generations.get(entry.id, 1))
            _end_calls(run, entry)
            if not goes_backward and _was_not_called(run, entry):
                entry.state = "PENDING"
        decisions = _decisions(run)
        for id, record in run.steps.items():
            if not _is_skipped_by_operator(record):
                del record.entries[run.begun_entries(id) :]
        left = {
            id: pack_record(record)
            for id, record in run.steps.items()
            if record.items == [] or any(entry.state != "PENDING" for entry in record.entries)
        }
        return LeftState(
            left,
            {entry.id: run.children[entry.id] for entry in entries if entry.id in run.children and entry.step in left},
            {id: generation for id, generation in generations.items() if generation > 1},
            {entry.id: entry.generation for entry in entries if _is_undone(entry)},
            decisions,
            is_past,
            goes_backward,
            run.residue,
            run.operator,
            run.reason if goes_backward else None,
        )


def _decisions(run: SagaRun) -> dict[str, bool]:
    """Decisions of the run, and of the runs before it. What an operator has skipped with a residue is none."""
    decided, residue = dict(run.earlier.decisions), {row["step"] for row in run.residue}
    for record in run.steps.values():
        for entry in record.entries:
            if entry.state == "SKIPPED" and entry.index is None and entry.id not in residue:
                decided[record.id] = False
            elif run.step(entry).do.uses == "finish" and entry.outcome == "done":
                decided[record.id] = run.finished_by == record.id
            elif entry.state != "PENDING":
                decided.pop(record.id, None)
    return decided


def joined_records(states: Sequence[LeftState]) -> dict[str, Any]:
    """The steps as several runs have left them, the last run first: an entry is as the last run has left it that has
    begun it.
    """
    records: dict[str, StepRecord] = {}
    for state in states:
        for id, packed in state.records.items():
            older = restore_record(StepRecord, packed)
            record = records.setdefault(id, older)
            if len(record.entries) < len(older.entries):
                _join(record, older, len(record.entries))
    return {id: pack_record(record) for id, record in records.items()}


def _is_skipped_by_operator(record: StepRecord) -> bool:
    """True for a step that has begun, and that an operator has skipped then."""
    return any(entry.state == "SKIPPED" and entry.index is None and entry.failure_ignored for entry in record.entries)


def _was_not_called(run: SagaRun, entry: Entry) -> bool:
    """True for a step about which an operator was asked, and has not decided: the next run asks again."""
    return entry.step in run.earlier.asked and entry.started_at is None and entry.state == "UNKNOWN"


def _is_undone(entry: Entry) -> bool:
    return entry.undo is not None and entry.undo.state in ("DONE", "SKIPPED")


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
        leave_to_rollback(run, entry)
    if entry.undo is not None and entry.undo.state in ("RUNNING", "PARKED"):
        entry.undo.state = "PENDING"
        if kind == "undo":
            doubt(run, entry.undo)
    entry.flight = entry.decision = None
