"""The view: the `saga show` document, and how it is shrunk to a size limit."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from sagas.definition.model import Definition, StepDefinition
from sagas.definition.times import format_timestamp
from sagas.machine import parked
from sagas.machine.arguments import DefinitionError, evaluate_labels
from sagas.machine.rollback import can_undo
from sagas.machine.state import LedgerEntry, OperationState, SagaRun
from sagas.protocol.payloads import entry_id


def build_view(run: SagaRun, at: float) -> dict[str, Any]:
    """The view of the run at the time ``at`` (seconds since the epoch)."""
    del at  # the document contains timestamps only; the caller computes ages
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
        "started_at": format_timestamp(run.started_at),
        "committed_at": format_timestamp(run.committed_at),
        "ended_at": format_timestamp(run.ended_at),
        "deadline_at": format_timestamp(run.deadline_at),
        "can_undo": can_undo(run),
        "undo_until": None,
        "cancel_requested": run.cancel_requested,
        "overdue": run.overdue,
        "steps_omitted": None,
        "parent": run.parent,
        "children": parked.children(run),
        "web_ui": None,  # the caller knows the address of the Web UI
        "steps": [row for step in run.definition.steps for row in _rows(run, step)],
        "parked": parked.rows(run),
        "not_done": list(run.not_done),
        "residue": [dict(row) for row in run.residue],
        "operator": [dict(row) for row in run.operator],
        "notifications": [{**row, **UNKNOWN_DELIVERY} for row in run.notifications],
    }


UNKNOWN_DELIVERY: dict[str, Any] = {
    "state": None,
    "attempts": None,
    "error": None,
    "next_attempt_at": None,
    "ended_at": None,
}
"""The fields of a notification that the saga does not know; the caller reads them from the run that delivers it."""


def blank_view(saga_id: str, saga: str) -> dict[str, Any]:
    """The view of a run that has not begun, with every field present."""
    plain = Definition(saga, ())
    return {**build_view(SagaRun(plain, None, saga_id, 1, {}, None), 0.0), "digest": None, "reason": None}


def _labels(run: SagaRun) -> dict[str, str]:
    try:
        return evaluate_labels(run)
    except DefinitionError:
        return {}  # such a saga never runs: the client refuses the input, and the worker refuses the run


def _rows(run: SagaRun, step: StepDefinition) -> list[dict[str, Any]]:
    record = run.steps[step.id]
    rows = [_row(step, entry) for entry in record.entries]
    if record.items:
        rows += [_row(step, LedgerEntry(entry_id(step.id, n), step.id, n)) for n in range(len(rows), len(record.items))]
    return rows or [_row(step, LedgerEntry(step.id, step.id, generation=run.generation))]


def _row(step: StepDefinition, entry: LedgerEntry) -> dict[str, Any]:
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
        "started_at": format_timestamp(entry.started_at),
        "ended_at": format_timestamp(entry.ended_at),
        "compensation": _operation_view(_compensation_action(step, entry), entry.undo),
        "confirmation": _operation_view(step.confirm.uses if step.confirm else None, entry.confirm),
    }


def _compensation_action(step: StepDefinition, entry: LedgerEntry) -> str | None:
    if step.compensate is None:
        return "saga" if entry.undo is not None else None
    if entry.undo is None:
        return step.compensate.alternates[0].uses
    if entry.undo.undoes_confirmed and step.compensate.confirmed is not None:
        return step.compensate.confirmed.uses
    return step.compensate.alternates[entry.undo.alternate].uses


def _operation_view(uses: str | None, operation: OperationState | None) -> dict[str, Any] | None:
    if uses is None or operation is None:
        return None
    return {
        "uses": uses,
        "state": operation.state,
        "attempts": operation.attempts,
        "alternate": operation.alternate,
        "error": operation.error,
        "ended_at": format_timestamp(operation.ended_at),
    }


OMITTED = "omitted"


def shrink_view(story: dict[str, Any], limit_bytes: int) -> dict[str, Any]:
    """Shrink the view to ``limit_bytes`` of JSON (rule 9): drop inputs and results first, then finished items.

    What an operator needs (parked operations, residue, entries in an error state) is dropped last.
    """
    if _json_size(story) <= limit_bytes:
        return story
    small = {**story, "input": _placeholder(story["input"]), "output": _placeholder(story["output"])}
    small["steps"] = [{**row, "result": _placeholder(row["result"])} for row in story["steps"]]
    if _json_size(small) <= limit_bytes:
        return small
    interesting = [row for row in small["steps"] if row["state"] not in _DROPPABLE_STATES or row["id"] == row["step"]]
    omitted = Counter(f"{row['step']} {row['state']}" for row in small["steps"] if row not in interesting)
    small["steps"], small["steps_omitted"] = interesting, dict(omitted)
    while _json_size(small) > limit_bytes and small["steps"]:
        keep = len(small["steps"]) // 2
        omitted.update(f"{row['step']} {row['state']}" for row in small["steps"][keep:])
        small["steps"], small["steps_omitted"] = small["steps"][:keep], dict(omitted)
    for name in ("notifications", "operator", "residue", "parked", "not_done", "children"):
        while _json_size(small) > limit_bytes and small[name]:
            small[name] = small[name][: len(small[name]) // 2]
    return small


_DROPPABLE_STATES = frozenset({"DONE", "CONFIRMED", "COMPENSATED", "NOTHING_TO_UNDO", "SKIPPED", "PENDING"})


def _json_size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str).encode())


def _placeholder(value: Any) -> Any:
    """Replace a value by a placeholder if that saves space."""
    size = _json_size(value)
    return value if size <= 64 else {OMITTED: "size", "bytes": size}
