"""Converts the state of a machine to a JSON snapshot and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.machine.arguments import publish_result
from sagas.machine.state import Flight, LedgerEntry, OperationState, ParkedOperation, SagaRun, StepRecord

SNAPSHOT_VERSION = 1

PLAIN_FIELDS = (
    "state",
    "phase",
    "reason",
    "recorded",
    "recorded_entries",
    "started_at",
    "committed_at",
    "ended_at",
    "deadline_at",
    "overdue",
    "cancel_requested",
    "rolling",
    "undoing_finished",
    "output",
    "steps_open",
    "undo_open",
    "confirm_steps_open",
    "signals",
    "operator",
    "residue",
    "not_done",
    "children",
    "trouble_shown",
)
"""The fields of a SagaRun that need no conversion."""


def dump_run(run: SagaRun) -> dict[str, Any]:
    """The snapshot of a run between two events. It shares values with the run: serialise it before the next event."""
    data: dict[str, Any] = {
        "version": SNAPSHOT_VERSION,
        "definition": to_snapshot(run.definition),
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
    if run.notifications:
        data["notifications"] = run.notifications
    if run.reported is not None:
        data["reported"] = run.reported
    for name in PLAIN_FIELDS:
        data[name] = getattr(run, name)
    return data


def load_run(data: Mapping[str, Any]) -> SagaRun:
    """Restore the run from the result of :func:`dump_run`. Raises ValueError for an unknown snapshot version."""
    if data.get("version") != SNAPSHOT_VERSION:
        raise ValueError(
            f"the snapshot has version {data.get('version')!r}; this engine reads version {SNAPSHOT_VERSION}"
        )
    run = SagaRun(
        from_snapshot(data["definition"]),
        data["input"],
        data["saga_id"],
        data["generation"],
        data["variables"],
        data["parent"],
    )
    for name in PLAIN_FIELDS:
        value = data[name]
        # Copy containers, so that two machines restored from one snapshot do not share state.
        setattr(run, name, value.copy() if isinstance(value, dict | list) else value)
    run.now = data["now"]
    run.kept_bytes = data.get("kept_bytes", 0)  # absent in snapshots from before the budget
    run.notifications = list(data.get("notifications", ()))
    run.reported = data.get("reported")
    run.timers = {id: (timer[0], timer[1]) for id, timer in data["timers"].items()}
    run.parked = {parked["step"]: ParkedOperation(**parked) for parked in data["parked"]}
    run.steps = {record["id"]: unpack_step(record) for record in data["steps"]}
    for packed in data["flights"]:
        run.restore_flight(Flight(**packed))
    settled = [record for record in run.steps.values() if record.settled]
    for record in settled:
        publish_result(run, record)
    run.ready = [id for id, record in run.steps.items() if not record.begun and record.needs_open == 0]
    return run


def pack_record(record: Any) -> dict[str, Any]:
    """A record as JSON, without the fields that have their default value."""
    data: dict[str, Any] = {}
    for item in fields(record):
        value = getattr(record, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if default is MISSING or value != default or type(value) is not type(default):
            data[item.name] = _pack_value(value)
    return data


def _pack_value(value: Any) -> Any:
    if isinstance(value, OperationState):
        return pack_record(value)
    if isinstance(value, list) and value and isinstance(value[0], LedgerEntry):
        return [pack_record(entry) for entry in value]
    return value


def unpack_entry(data: dict[str, Any]) -> LedgerEntry:
    entry = LedgerEntry(**data)
    if data.get("undo") is not None:
        entry.undo = OperationState(**data["undo"])
    if data.get("confirm") is not None:
        entry.confirm = OperationState(**data["confirm"])
    return entry


def unpack_step(data: dict[str, Any]) -> StepRecord:
    record = StepRecord(**{**data, "entries": []})
    record.entries = [unpack_entry(entry) for entry in data.get("entries", ())]
    return record
