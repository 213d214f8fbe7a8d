"""The `saga show` document, and how it is made to fit."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from sagas.definition.model import Definition, Step
from sagas.machine import parked
from sagas.machine.arguments import DefinitionFault, labels
from sagas.machine.keys import entry_id
from sagas.machine.moments import iso
from sagas.machine.permission import can_undo
from sagas.machine.run import Run
from sagas.machine.state import Entry, Operation


def story(run: Run, at: float) -> dict[str, Any]:
    """Everything there is to tell about the run. ``at`` is the moment of the telling."""
    del at  # the document holds points in time, no ages; the caller renders those
    return {
        "id": run.saga_id,
        "saga": run.definition.saga,
        "digest": run.definition.digest,
        "generation": run.generation,
        "state": run.state,
        "phase": run.phase,
        "reason": run.reason,
        "input": run.input,
        "output": run.output,
        "labels": _labels(run),
        "started_at": iso(run.started_at),
        "committed_at": iso(run.committed_at),
        "ended_at": iso(run.ended_at),
        "deadline_at": iso(run.deadline_at),
        "can_undo": can_undo(run),
        "undo_until": None,
        "cancel_requested": run.cancel_requested,
        "overdue": run.overdue,
        "steps_omitted": None,
        "parent": run.parent,
        "children": parked.children(run),
        "web_ui": None,  # the caller knows where the server's pages are
        "steps": [row for step in run.definition.steps for row in _rows(run, step)],
        "parked": parked.rows(run),
        "not_done": list(run.not_done),
        "residue": [dict(row) for row in run.residue],
        "operator": [dict(row) for row in run.operator],
        "notifications": [{**row, **UNTOLD} for row in run.notifications],
    }


UNTOLD: dict[str, Any] = {"state": None, "attempts": None, "error": None, "next_attempt_at": None, "ended_at": None}
"""What a saga itself cannot know of a notification; whoever tells the story asks the run that delivers it."""


def blank(saga_id: str, saga: str) -> dict[str, Any]:
    """The document of a run that has not begun: every field is there."""
    plain = Definition(saga, ())
    return {**story(Run(plain, None, saga_id, 1, {}, None), 0.0), "digest": None, "reason": None}


def _labels(run: Run) -> dict[str, str]:
    try:
        return labels(run)
    except DefinitionFault:
        return {}  # nobody starts such a saga: the client refuses the input, and the worker refuses the run


def _rows(run: Run, step: Step) -> list[dict[str, Any]]:
    record = run.steps[step.id]
    rows = [_row(step, entry) for entry in record.entries]
    if record.items:
        rows += [_row(step, Entry(entry_id(step.id, n), step.id, n)) for n in range(len(rows), len(record.items))]
    return rows or [_row(step, Entry(step.id, step.id, generation=run.generation))]


def _row(step: Step, entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "step": step.id,
        "name": step.name,
        "uses": step.do.uses,
        "state": entry.state,
        "outcome": entry.outcome,
        "generation": entry.generation,
        "attempts": entry.attempts,
        "guarantee": step.guarantee,
        "result": entry.result,
        "error": entry.error,
        "started_at": iso(entry.started_at),
        "ended_at": iso(entry.ended_at),
        "compensation": _operation(_undo_action(step, entry), entry.undo),
        "confirmation": _operation(step.confirm.uses if step.confirm else None, entry.confirm),
    }


def _undo_action(step: Step, entry: Entry) -> str | None:
    if step.compensate is None:
        return "saga" if entry.undo is not None else None
    if entry.undo is None:
        return step.compensate.alternates[0].uses
    if entry.undo.use_confirmed and step.compensate.confirmed is not None:
        return step.compensate.confirmed.uses
    return step.compensate.alternates[entry.undo.alternate].uses


def _operation(uses: str | None, operation: Operation | None) -> dict[str, Any] | None:
    if uses is None or operation is None:
        return None
    return {
        "uses": uses,
        "state": operation.state,
        "attempts": operation.attempts,
        "alternate": operation.alternate,
        "error": operation.error,
        "ended_at": iso(operation.ended_at),
    }


OMITTED = "omitted"


def shrink(story: dict[str, Any], limit_bytes: int) -> dict[str, Any]:
    """The story in at most ``limit_bytes`` of JSON (rule 9): inputs and results go first, then finished items.

    What needs a person (parked, residue, entries in trouble) is kept as long as anything is.
    """
    if _bytes(story) <= limit_bytes:
        return story
    small = {**story, "input": _note(story["input"]), "output": _note(story["output"])}
    small["steps"] = [{**row, "result": _note(row["result"])} for row in story["steps"]]
    if _bytes(small) <= limit_bytes:
        return small
    interesting = [row for row in small["steps"] if row["state"] not in _QUIET or row["id"] == row["step"]]
    omitted = Counter(f"{row['step']} {row['state']}" for row in small["steps"] if row not in interesting)
    small["steps"], small["steps_omitted"] = interesting, dict(omitted)
    while _bytes(small) > limit_bytes and small["steps"]:
        keep = len(small["steps"]) // 2
        omitted.update(f"{row['step']} {row['state']}" for row in small["steps"][keep:])
        small["steps"], small["steps_omitted"] = small["steps"][:keep], dict(omitted)
    for name in ("notifications", "operator", "residue", "parked", "not_done", "children"):
        while _bytes(small) > limit_bytes and small[name]:
            small[name] = small[name][: len(small[name]) // 2]
    return small


_QUIET = frozenset({"DONE", "CONFIRMED", "COMPENSATED", "NOTHING_TO_UNDO", "SKIPPED", "PENDING"})


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str).encode())


def _note(value: Any) -> Any:
    """A placeholder for a value that is larger than itself would be worth."""
    size = _bytes(value)
    return value if size <= 64 else {OMITTED: "size", "bytes": size}
