"""Converts the state of a machine to a JSON snapshot and back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar

from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.definition.times import restore_record
from sagas.machine.arguments import publish_result
from sagas.machine.state import Flight, LedgerEntry, LockState, OperationState, ParkedOperation, SagaRun, StepRecord

SNAPSHOT_VERSION = 1

R = TypeVar("R")

RUN_KEYS: dict[str, str] = {
    "state": "state",
    "phase": "phase",
    "reason": "reason",
    "pending_cause": "recorded",
    "pending_entries": "recorded_entries",
    "started_at": "started_at",
    "committed_at": "committed_at",
    "ended_at": "ended_at",
    "deadline_at": "deadline_at",
    "overdue": "overdue",
    "cancel_requested": "cancel_requested",
    "compensating": "rolling",
    "undoing_finished": "undoing_finished",
    "output": "output",
    "steps_open": "steps_open",
    "compensations_open": "undo_open",
    "confirm_steps_open": "confirm_steps_open",
    "signals": "signals",
    "operator": "operator",
    "residue": "residue",
    "not_done": "not_done",
    "children": "children",
    "retrying_recorded": "trouble_shown",
}
"""The attributes of a SagaRun that need no conversion, and their JSON keys."""

_TIMES = ("started_at", "committed_at", "ended_at", "deadline_at")
"""Those of them that are seconds since the epoch, which JSON has as decimals."""

KEYS: dict[str, str] = {
    "min_attempts": "made",
    "retry_baseline": "tries_from",
    "retry_baseline_at": "tries_since",
    "probe_rounds": "rounds",
    "last_attempt_ended_at": "last_end",
    "looked_up": "asked",
    "failure_kind": "word",
    "failure_ignored": "continued",
    "guard_decided": "marked",
    "undoes_confirmed": "use_confirmed",
}
"""The JSON keys of the fields of ledger entries and their operations that are stored under another name."""

FLIGHT_KEYS: dict[str, str] = {"call_kind": "ask", "started_at": "since"}
"""The same for flights."""


RUN_DEFAULTS: Mapping[str, Any] = {
    "generation": 1,
    "variables": {},
    "parent": None,
    "timers": {},
    "flights": [],
    "parked": [],
    "reason": None,
    "recorded": None,
    "recorded_entries": [],
    "committed_at": None,
    "deadline_at": None,
    "overdue": False,
    "cancel_requested": False,
    "rolling": False,
    "undoing_finished": False,
    "output": None,
    "steps_open": 0,
    "undo_open": 0,
    "confirm_steps_open": 0,
    "signals": {},
    "operator": [],
    "residue": [],
    "not_done": [],
    "children": {},
    "trouble_shown": False,
}
"""The usual values of a saga that has ended without incident. Ledgers hold states that were written without them, so
an entry never changes or goes, and a new one may only be added for a key that older states cannot have."""


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
        "flights": [_pack(flight, FLIGHT_KEYS) for flight in run.flights.values()],
        "parked": [_pack(parked) for parked in run.parked.values()],
        "steps": [_pack(record) for record in run.steps.values()],
    }
    data["kept_bytes"] = run.kept_bytes
    if run.savepoint is not None:
        data["savepoint"] = run.savepoint
    if run.notifications:
        data["notifications"] = run.notifications
    if run.reported is not None:
        data["reported"] = run.reported
    if run.locks is not None:
        data["locks"] = _pack(run.locks)
    if run.child_row_locks:
        data["child_row_locks"] = run.child_row_locks
    for name, key in RUN_KEYS.items():
        data[key] = getattr(run, name)
    return data


def load_run(data: Mapping[str, Any], plan: ExecutionPlan | None = None) -> SagaRun:
    """Restore the run from the result of :func:`dump_run`. Raises ValueError for an unknown snapshot version.

    ``plan``: that of the definition, if the caller has both; then ``definition`` is the definition itself.
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
    )
    for name, key in RUN_KEYS.items():
        value = data[key]
        # Copy containers, so that two machines restored from one snapshot do not share state.
        setattr(run, name, value.copy() if isinstance(value, dict | list) else value)
    for name in _TIMES:
        value = getattr(run, name)
        setattr(run, name, None if value is None else float(value))
    run.now = float(data["now"])
    run.kept_bytes = data.get("kept_bytes", 0)  # absent in snapshots from before the budget
    run.savepoint = data.get("savepoint")
    run.notifications = list(data.get("notifications", ()))
    run.reported = data.get("reported")
    run.locks = _unpack(LockState, data["locks"]) if "locks" in data else None
    run.child_row_locks = data.get("child_row_locks", [])
    run.timers = {id: (float(timer[0]), timer[1]) for id, timer in data["timers"].items()}
    run.parked = {parked["step"]: _unpack(ParkedOperation, parked) for parked in data["parked"]}
    run.steps = {record["id"]: _unpack_step(record) for record in data["steps"]}
    for packed in data["flights"]:
        run.restore_flight(_unpack(Flight, packed, FLIGHT_KEYS))
    settled = [record for record in run.steps.values() if record.settled]
    for record in settled:
        publish_result(run, record)
    run.ready = [id for id, record in run.steps.items() if not record.begun and record.needs_open == 0]
    return run


def _pack(record: Any, keys: Mapping[str, str] = KEYS) -> dict[str, Any]:
    """A record as JSON, without the fields that have their default value."""
    data: dict[str, Any] = {}
    for name, default in _defaults(type(record)):
        value = getattr(record, name)
        if value is not default and (value != default or type(value) is not type(default)):
            data[keys.get(name, name)] = _pack_value(value)
    return data


@cache
def _defaults(record: type) -> tuple[tuple[str, Any], ...]:
    """The fields of a record with their defaults; MISSING is equal to no value."""
    return tuple(
        (item.name, item.default_factory() if item.default_factory is not MISSING else item.default)
        for item in fields(record)
    )


def _pack_value(value: Any) -> Any:
    if isinstance(value, OperationState):
        return _pack(value)
    if isinstance(value, list) and value and isinstance(value[0], LedgerEntry):
        return [_pack(entry) for entry in value]
    return list(value) if isinstance(value, tuple) else value


def _unpack(record: type[R], data: Mapping[str, Any], keys: Mapping[str, str] = KEYS) -> R:
    """The record of a result of :func:`_pack`; records within it stay JSON."""
    names = {key: name for name, key in keys.items()}
    return restore_record(record, {names.get(key, key): value for key, value in data.items()})


def _unpack_step(data: Mapping[str, Any]) -> StepRecord:
    record = _unpack(StepRecord, {**data, "entries": []})
    record.entries = [_unpack_entry(entry) for entry in data.get("entries", ())]
    return record


def _unpack_entry(data: Mapping[str, Any]) -> LedgerEntry:
    entry = _unpack(LedgerEntry, data)
    if data.get("undo") is not None:
        entry.undo = _unpack(OperationState, data["undo"])
    if data.get("confirm") is not None:
        entry.confirm = _unpack(OperationState, data["confirm"])
    return entry
