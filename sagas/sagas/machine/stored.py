"""The whole state as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.machine.arguments import publish
from sagas.machine.run import Run
from sagas.machine.state import Flight, Parked, pack, unpack_step

VERSION = 1

PLAIN = (
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
"""The fields of a Run that are JSON as they are."""


def dump(run: Run) -> dict[str, Any]:
    """JSON of a run between two events. The values are shared with the run: serialise before the next event."""
    data: dict[str, Any] = {
        "version": VERSION,
        "definition": to_snapshot(run.definition),
        "input": run.input,
        "saga_id": run.saga_id,
        "generation": run.generation,
        "variables": dict(run.variables),
        "parent": run.parent,
        "now": run.now,
        "timers": {id: list(timer) for id, timer in run.timers.items()},
        "flights": [pack(flight) for flight in run.flights.values()],
        "parked": [pack(parked) for parked in run.parked.values()],
        "steps": [pack(record) for record in run.steps.values()],
    }
    data["kept_bytes"] = run.kept_bytes
    if run.notifications:
        data["notifications"] = run.notifications
    if run.reported is not None:
        data["reported"] = run.reported
    for name in PLAIN:
        data[name] = getattr(run, name)
    return data


def load(data: Mapping[str, Any]) -> Run:
    """The run of :func:`dump`. Raises ValueError for a snapshot of a version this engine does not know."""
    if data.get("version") != VERSION:
        raise ValueError(f"a machine of version {data.get('version')!r}; this engine reads version {VERSION}")
    run = Run(
        from_snapshot(data["definition"]),
        data["input"],
        data["saga_id"],
        data["generation"],
        data["variables"],
        data["parent"],
    )
    for name in PLAIN:
        value = data[name]
        # Own containers, so that two machines of one snapshot do not share their state.
        setattr(run, name, value.copy() if isinstance(value, dict | list) else value)
    run.now = data["now"]
    run.kept_bytes = data.get("kept_bytes", 0)  # snapshots made before the budget have none
    run.notifications = list(data.get("notifications", ()))
    run.reported = data.get("reported")
    run.timers = {id: (timer[0], timer[1]) for id, timer in data["timers"].items()}
    run.parked = {parked["step"]: Parked(**parked) for parked in data["parked"]}
    run.steps = {record["id"]: unpack_step(record) for record in data["steps"]}
    for packed in data["flights"]:
        run.rejoin(Flight(**packed))
    settled = [record for record in run.steps.values() if record.settled]
    for record in settled:
        publish(run, record)
    run.ready = [id for id, record in run.steps.items() if not record.begun and record.needs_open == 0]
    return run
