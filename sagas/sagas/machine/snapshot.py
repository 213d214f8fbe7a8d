"""Converts the state of a machine to a JSON snapshot and back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.machine.earlier_runs import EarlierRuns
from sagas.machine.expressions.context import publish_result
from sagas.machine.lock_state import LockState
from sagas.machine.state import Flight, ParkedOperation, SagaRun, StepRecord
from sagas.text.records import pack_record, restore_record

SNAPSHOT_VERSION = 1

RUN_FIELDS: tuple[str, ...] = (
    "state",
    "phase",
    "reason",
    "pending_cause",
    "pending_entries",
    "started_at",
    "committed_at",
    "ended_at",
    "deadline_at",
    "overdue",
    "cancel_requested",
    "compensating",
    "undoing_finished",
    "output",
    "steps_open",
    "compensations_open",
    "confirm_steps_open",
    "signals",
    "operator",
    "residue",
    "not_done",
    "children",
    "retrying_recorded",
)
"""The attributes of a SagaRun that need no conversion."""

_TIMES = ("started_at", "committed_at", "ended_at", "deadline_at")
"""The attributes in ``RUN_FIELDS`` that are seconds since the epoch, which JSON has as decimals."""

RUN_DEFAULTS: Mapping[str, Any] = {
    "generation": 1,
    "variables": {},
    "parent": None,
    "timers": {},
    "flights": [],
    "parked": [],
    "reason": None,
    "pending_cause": None,
    "pending_entries": [],
    "committed_at": None,
    "deadline_at": None,
    "overdue": False,
    "cancel_requested": False,
    "compensating": False,
    "undoing_finished": False,
    "output": None,
    "steps_open": 0,
    "compensations_open": 0,
    "confirm_steps_open": 0,
    "signals": {},
    "operator": [],
    "residue": [],
    "not_done": [],
    "children": {},
    "retrying_recorded": False,
}
"""The usual values of a saga that has ended without incident. Ledgers hold states that were written without them, so
with a change of an entry :data:`SNAPSHOT_VERSION` changes."""


def dump_compact(run: SagaRun) -> dict[str, Any]:
    """The snapshot of a run without its definition and its usual values, for the states of many sagas."""
    return {
        key: value for key, value in _dump_state(run).items() if key not in RUN_DEFAULTS or value != RUN_DEFAULTS[key]
    }


def expand(compacted: Mapping[str, Any], definition: Any) -> dict[str, Any]:
    """The whole snapshot of a run from the result of :func:`dump_compact`."""
    return {**copy.deepcopy(dict(RUN_DEFAULTS)), **compacted, "definition": definition}


def dump_run(run: SagaRun) -> dict[str, Any]:
    """The snapshot of a run between two events. It shares values with the run: serialise it before the next event."""
    return {**_dump_state(run), "definition": to_snapshot(run.definition)}


def _dump_state(run: SagaRun) -> dict[str, Any]:
    data: dict[str, Any] = {
        "version": SNAPSHOT_VERSION,
        "input": run.input,
        "saga_id": run.saga_id,
        "generation": run.generation,
        "variables": dict(run.variables),
        "parent": run.parent,
        "now": run.now,
        "timers": {id: list(timer) for id, timer in run.timers.items()},
        "flights": [pack_record(flight) for flight in run.flights.values()],
        "parked": [pack_record(parked) for parked in run.parked.values()],
        "steps": [pack_record(record) for record in run.steps.values()],
    }
    data["kept_bytes"] = run.kept_bytes
    if run.result_rooms:
        data["result_rooms"] = dict(run.result_rooms)
    if run.savepoint is not None:
        data["savepoint"] = run.savepoint
    if run.finished_by is not None:
        data["finished_by"] = run.finished_by
    if run.notifications:
        data["notifications"] = run.notifications
    if run.redelivery is not None:
        data["redelivery"] = run.redelivery
    if run.reported is not None:
        data["reported"] = run.reported
    if run.locks is not None:
        data["locks"] = pack_record(run.locks)
    if run.undo_scope:
        data["undo_scope"] = run.undo_scope
    if run.root_start:
        data["root_start"] = run.root_start
    if run.earlier != EarlierRuns():
        # A record of a step that this run has begun itself, with all its items, tells no more than the decisions of
        # operators about it.
        decided = {row["step"].partition("#")[0] for row in run.operator}
        records = {
            id: record
            for id, record in run.earlier.records.items()
            if id in decided or run.begun_entries(id) < len(record.get("entries", ()))
        }
        data["earlier"] = pack_record(replace(run.earlier, records=records))
    if run.child_row_locks:
        data["child_row_locks"] = run.child_row_locks
    if run.operator_pause_at is not None:
        data["operator_pause_at"] = run.operator_pause_at
    for name in RUN_FIELDS:
        data[name] = getattr(run, name)
    return data


def load_run(data: Mapping[str, Any], plan: ExecutionPlan | None = None) -> SagaRun:
    """Restore the run from the result of :func:`dump_run`. Raises ValueError for an unknown snapshot version.

    ``plan``: the plan of the definition, if the caller has it; then ``data["definition"]`` is the definition itself,
    not its snapshot.
    """
    if data.get("version") != SNAPSHOT_VERSION:
        raise ValueError(
            f"the snapshot has version {data.get('version')!r}; this engine reads version {SNAPSHOT_VERSION}"
        )
    run = SagaRun(
        data["definition"] if plan is not None else from_snapshot(data["definition"]),
        data["input"],
        data["saga_id"],
        data["generation"],
        data["variables"],
        data["parent"],
        plan,
        data.get("undo_scope", ""),
    )
    for name in RUN_FIELDS:
        value = data[name]
        # Copy containers, so that two machines restored from one snapshot do not share state.
        setattr(run, name, value.copy() if isinstance(value, dict | list) else value)
    for name in _TIMES:
        value = getattr(run, name)
        setattr(run, name, None if value is None else float(value))
    run.root_start = data.get("root_start", "")
    run.now = float(data["now"])
    run.kept_bytes = data["kept_bytes"]
    run.result_rooms = dict(data.get("result_rooms", {}))
    run.savepoint = data.get("savepoint")
    run.finished_by = data.get("finished_by")
    run.notifications = list(data.get("notifications", ()))
    run.redelivery = dict(data["redelivery"]) if "redelivery" in data else None
    run.reported = data.get("reported")
    run.locks = restore_record(LockState, data["locks"]) if "locks" in data else None
    if "earlier" in data:
        run.earlier = restore_record(EarlierRuns, copy.deepcopy(data["earlier"]))
    run.child_row_locks = data.get("child_row_locks", [])
    run.operator_pause_at = float(data["operator_pause_at"]) if "operator_pause_at" in data else None
    run.timers = {id: (float(timer[0]), timer[1]) for id, timer in data["timers"].items()}
    run.parked = {parked["step"]: restore_record(ParkedOperation, parked) for parked in data["parked"]}
    run.steps = {record["id"]: restore_record(StepRecord, record) for record in data["steps"]}
    for packed in data["flights"]:
        run.restore_flight(restore_record(Flight, packed))
    settled = [record for record in run.steps.values() if record.settled]
    for record in settled:
        publish_result(run, record)
    run.ready = [id for id, record in run.steps.items() if not record.begun and record.needs_open == 0]
    return run
