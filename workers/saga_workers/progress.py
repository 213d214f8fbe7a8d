"""How far the attempts in flight are: how many have ended, how the last one failed, what the one at work has said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.converter import DataConverter
from temporalio.exceptions import FailureError

from saga_workers.runs import Description
from sagas.outcomes import Failure
from sagas.wire import LOAD, NOT_STARTED
from sagas.workflow.failures import outcome_of

_ROWS = {"undo": "compensation", "confirm": "confirmation"}
_WORDS = {"": "", "compensation": "the undo of ", "confirmation": "the confirm of "}


async def with_progress(story: Mapping[str, Any], described: Description) -> dict[str, Any]:
    """The story with what only Temporal knows of calls that go on.

    A row counts the attempts that have ended and has the ``error`` of the last one; a step whose attempt beats has a
    ``progress``: the JSON object of its last heartbeat.
    """
    steps = {step["id"]: dict(step) for step in story.get("steps") or ()}
    converter = described.run.converter
    for activity in described.raw.pending_activities:
        entry, row = operation_of(activity.activity_id)
        step = steps.get(entry)
        if step is None or row is None:
            continue
        if not row:
            step |= await _attempted(step, activity, converter) | await _beaten(activity, converter)
        elif step.get(row):
            step[row] = {**step[row], **await _attempted(step[row], activity, converter)}
    return {**story, "steps": list(steps.values())}


def operation_of(activity_id: str) -> tuple[str, str | None]:
    """The ledger id of a call, and the field of its row that tells of it: "" for the step itself, None for none."""
    entry, _, what = activity_id.partition("~")
    if not what or what.isdigit():
        return entry, ""  # a number: the first one was given up
    return entry, _ROWS.get(what.partition(".")[0])


def operations_under_way(described: Description) -> list[str]:
    """The calls that Temporal knows to be open, in words; what the server still lists of a closed run is not."""
    return [_in_words(one) for one in described.raw.pending_activities] if described.run.running else []


def _in_words(activity: PendingActivityInfo) -> str:
    """`the undo of hotel (attempt 2)`."""
    entry, row = operation_of(activity.activity_id)
    name = "reading its definition" if activity.activity_type.name == LOAD else activity.activity_id
    if row is not None and activity.activity_type.name != LOAD:
        name = f"{_WORDS[row]}{entry}"
    return f"{name} (attempt {activity.attempt})" if activity.attempt > 1 else name


async def _attempted(row: Mapping[str, Any], activity: PendingActivityInfo, converter: DataConverter) -> dict[str, Any]:
    """``attempts`` and ``error`` after the attempts of this call that have ended."""
    if activity.attempt < 2 or not activity.HasField("last_failure"):
        return {}
    failure = await _failure(activity, converter)
    counted = 0 if failure.type in NOT_STARTED else activity.attempt - 1
    before = row.get("attempts")
    return {"attempts": None if before is None else before + counted, "error": failure.to_json()}


async def _failure(activity: PendingActivityInfo, converter: DataConverter) -> Failure:
    error = await converter.decode_failure(activity.last_failure)
    found = outcome_of(error).failure if isinstance(error, FailureError) else None
    return found or Failure(type(error).__name__, str(error))


async def _beaten(activity: PendingActivityInfo, converter: DataConverter) -> dict[str, Any]:
    if not activity.heartbeat_details.payloads:
        return {}
    values = await converter.decode(activity.heartbeat_details.payloads[:1])
    return {"progress": values[0]} if isinstance(values[0], dict) and values[0] else {}
