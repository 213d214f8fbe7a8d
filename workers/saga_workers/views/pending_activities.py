"""The words for a pending activity of a saga: its id names the step and the operation, its type the rest."""

from __future__ import annotations

from temporalio.api.workflow.v1 import PendingActivityInfo

from saga_workers.temporal.temporal_runs import RunDescription
from sagas.bulk.names import BULK_ACTIVITIES
from sagas.protocol.payloads import (
    LOAD_ACTIVITY,
    LOCK_ACTIVITY,
    NESTED_ACTIVITY,
    RELEASE_ACTIVITY,
    RESET_ACTIVITY,
    SLOT_ACTIVITY,
    SLOT_CANCEL_ACTIVITY,
    SLOT_STATE_ACTIVITY,
    VERIFY_ACTIVITY,
)
from sagas.protocol.redelivery_names import REDELIVER_ACTIVITY

_OF_NO_STEP = {
    LOAD_ACTIVITY: "loading its definition or input",
    VERIFY_ACTIVITY: "the check of its input",
    LOCK_ACTIVITY: "the request for its locks",
    RELEASE_ACTIVITY: "the release of its locks",
    RESET_ACTIVITY: "the question what it had done before its reset",
    NESTED_ACTIVITY: "the question how a nested saga has ended",
    SLOT_ACTIVITY: "the start of its saga",
    SLOT_STATE_ACTIVITY: "the question whether its saga has ended",
    SLOT_CANCEL_ACTIVITY: "the cancel of its saga",
    REDELIVER_ACTIVITY: "the next start of its saga",
    **{name: name for name in BULK_ACTIVITIES},
}
"""The words for each activity type that belongs to no step."""

_OPERATIONS = {
    "undo": "the undo of",
    "undo-mark": "the undo of",
    "confirm": "the confirm of",
    "confirm-mark": "the confirm of",
    "probe": "the probe of",
    "seal": "the seal of",
    "skip": "the skip of",
    "write": "the recorded result of",
    "callback": "the callback of",
}
"""The words for what follows ``~`` in the id of an activity, see :mod:`sagas.machine.calls`."""

_FIELDS = {"undo": "compensation", "confirm": "confirmation"}


def parse_activity_id(activity_id: str) -> tuple[str, str | None]:
    """The entry id of a call and the field of its row: "" for the step itself, None if there is none."""
    entry, operation = _parts(activity_id)
    return entry, _FIELDS.get(operation) if operation else ""


def activity_in_words(activity: PendingActivityInfo) -> str:
    """For example `the undo of hotel#0`."""
    label = _OF_NO_STEP.get(activity.activity_type.name)
    if label is not None:
        return label
    entry, operation = _parts(activity.activity_id)
    if not operation:
        return entry
    words = _OPERATIONS.get(operation)
    return activity.activity_id if words is None else f"{words} {entry}"


def activities_under_way(described: RunDescription) -> list[str]:
    """The open calls, in words. Empty for a closed run, although the server may still list some."""
    if not described.run.running:
        return []
    return [
        f"{activity_in_words(activity)} (attempt {activity.attempt})"
        if activity.attempt > 1
        else activity_in_words(activity)
        for activity in described.raw.pending_activities
    ]


def _parts(activity_id: str) -> tuple[str, str]:
    """The entry id and what is done with it; "" for its forward call. A number tells of an earlier call, given up."""
    entry, _, what = activity_id.partition("~")
    operation = what.partition("~")[0].partition(".")[0]
    return entry, "" if operation.isdigit() else operation
