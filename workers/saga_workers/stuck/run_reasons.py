"""The reasons that Temporal knows why an open run does not go on."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, timedelta

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client as Temporal

from saga_workers.temporal.attempt_failure import latest_failure
from saga_workers.temporal.malformed_results import is_malformed_result, malformed_result_text
from saga_workers.temporal.run_history import last_task_failure
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import RunDescription, no_poller_message, nobody_answers
from saga_workers.views.answering import DUE, WORKFLOW_TASK, Workers, failing_task_reason
from saga_workers.views.pending_activities import activity_in_words, parse_activity_id
from saga_workers.views.reported_reasons import MANY_ATTEMPTS
from saga_workers.views.run_facts import iso_time
from sagas.protocol.payloads import (
    LOCK_ACTIVITY,
    RELEASE_ACTIVITY,
    UNDO_SUFFIX,
)
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command

_LONGEST_DELAY = timedelta(hours=1)
"""The longest delay that a participant may ask for, as with Retry-After, see `saga_activities.http.response`."""


def is_failing_task(reason: str) -> bool:
    """True for the reason that the workflow task of a run fails, or is not completed in time."""
    return reason.startswith(WORKFLOW_TASK)


async def temporal_reasons(
    temporal: Temporal, described: RunDescription, workers: Workers, reported_steps: Collection[str] = ()
) -> list[str]:
    """Reasons that Temporal knows: no worker, a failing workflow task, activities that are retried again and again.

    ``reported_steps``: ids of the steps in the saga's view, which already reports their number of attempts.
    """
    reasons = []
    run, raw = described.run, described.raw
    if run.paused:
        reasons.append("it is paused in Temporal")
    attempt = raw.pending_workflow_task.attempt
    failure = await last_task_failure(temporal, run) if attempt > 1 else None
    if is_malformed_result(failure):
        reasons.append(malformed_result_text(run.id))
    elif not await workers.polled(run.task_queue):
        reasons.append(no_poller_message(run.task_queue))
    elif attempt > 1 and failure is not None and failure.message:
        reasons.append(failing_task_reason(attempt, failure))
    elif await workers.unanswered(described):
        reasons.append(await workers.why_silent(run.task_queue))
    elif attempt > 1:
        reasons.append(failing_task_reason(attempt, failure))
    for activity in raw.pending_activities:
        what = activity_in_words(activity)
        queue = activity.activity_options.task_queue.name or run.task_queue
        scheduled = activity.scheduled_time.ToMicroseconds() / 1e6
        waiting = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        if activity.paused:
            reasons.append(f"{what} is paused in Temporal")
        elif waiting and (postponed := await _postponed(activity, workers.server_time)) is not None:
            reasons.append(f"{what} {postponed}")
        elif activity.attempt > MANY_ATTEMPTS and not _is_reported(activity.activity_id, reported_steps):
            last = printable_line(latest_failure(activity).message) or "no answer"
            reasons.append(f"{what} was attempted {activity.attempt} times; the last failure: {last}")
            if activity.activity_type.name == RELEASE_ACTIVITY:
                reasons.append(f"if they cannot be released: {release_command(run.id)}")
            elif activity.activity_type.name == LOCK_ACTIVITY and run.id.endswith(UNDO_SUFFIX):
                reasons.append(f"if it is to go on without them: {_skip_command(run.id, LOCK_ACTIVITY)}")
        elif queue != run.task_queue and waiting and await workers.server_time.likely() - scheduled > DUE:
            if not await workers.polled(queue, workflows=False):
                reasons.append(f"{what} waits: {no_poller_message(queue)}")
            elif not await workers.polled(queue, workflows=False, since=scheduled):
                # The last poller has gone or is busy: an idle worker takes a task at once.
                reasons.append(f"{what} waits: {nobody_answers(queue)}")
    return reasons


async def _postponed(activity: PendingActivityInfo, server_time: ServerTime) -> str | None:
    """The reason of an attempt that its worker has postponed for longer than the `retry` of the definition allows; None
    for any other one. Temporal lets the failure of an attempt choose the delay, whatever the retry policy says.
    """
    if not activity.HasField("next_attempt_schedule_time"):
        return None
    following = activity.next_attempt_schedule_time.ToDatetime(UTC)
    longest = activity.activity_options.retry_policy.maximum_interval.ToTimedelta()
    if following.timestamp() - await server_time.likely() <= max(longest, _LONGEST_DELAY).total_seconds():
        return None
    return (
        f"waits until {iso_time(following)}: its worker has asked for a delay longer than `max_interval` and an hour;"
        " a reset of this activity in Temporal (`temporal activity reset`) makes the attempt at once"
    )


def release_command(workflow_id: str) -> str:
    """The command that lets a saga end without the release of its locks."""
    return _skip_command(workflow_id, RELEASE_ACTIVITY)


def _skip_command(workflow_id: str, what: str) -> str:
    return saga_command("resolve", workflow_id.removesuffix(UNDO_SUFFIX), what, "skip", reason="…")


def _is_reported(activity_id: str, reported_steps: Collection[str]) -> bool:
    entry, row = parse_activity_id(activity_id)
    return row is not None and entry in reported_steps
