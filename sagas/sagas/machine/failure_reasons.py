"""The reasons why an entry has failed, and why an operation is parked."""

from __future__ import annotations

from sagas.definition.model import checked_entry
from sagas.machine.state import Entry, EntryOperation

NO_GUARD_ROW = (
    "the guard has no row of this effect: its retention has deleted it, or this is another database or an earlier "
    "state of it. Undo the effect by hand and decide `done`, or correct the database and `retry`"
)
"""Why an undo is parked whose effect the guard does not know (any more)."""


def failure_cause(entry: Entry) -> dict[str, object]:
    """The cause of rollback for this entry: the error of its last attempt, whatever the merged outcome."""
    error = entry.error or {"type": "Unknown", "message": f"{entry.id} did not respond", "details": {}}
    return {
        "kind": entry.failure_kind or "failed",
        "step": checked_entry(entry.id) or entry.id,
        "type": error["type"],
        "message": error["message"],
        "details": error["details"],
        **({"quotes": True} if error.get("quotes") else {}),
    }


def failure_message(entry: Entry, op: EntryOperation) -> str:
    """The reason for parking an operation: its last error."""
    error, operation = entry.error, entry.id
    if op == "undo":
        error, operation = entry.undo.error if entry.undo else None, "the undo"
    elif op == "confirm":
        error, operation = entry.confirm.error if entry.confirm else None, "the confirm"
    return f"{error['type']}: {error['message']}" if error else f"{operation} has not succeeded"
