"""The rules behind the Web UI's "Common Errors" that a history can break, checked on the history itself.

Version 2.54 of the UI does not draw that panel on its own, so a page without it proves nothing; the rules do.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import WorkflowHistory

SECRETS = ("password", "token", "secret", "ssn")
LONGEST = 10_000


def common_errors(history: WorkflowHistory) -> list[str]:
    """One message per rule that the run breaks."""
    collected: list[str] = []

    def check(broken: bool, sentence: str) -> None:
        if broken:
            collected.append(sentence)

    start = history.events[0].workflow_execution_started_event_attributes
    check(start.workflow_execution_timeout.ToTimedelta() > timedelta(0), "execution timeout set")
    check(start.workflow_run_timeout.ToTimedelta() > timedelta(0), "run timeout set")
    check(start.workflow_task_timeout.ToTimedelta() != timedelta(seconds=10), "workflow task timeout is not 10 s")
    check(start.HasField("retry_policy"), "workflow has a retry policy")
    check(start.first_workflow_task_backoff.ToTimedelta() > timedelta(0), "start delay")
    check(len(start.input.payloads) > 1, "more than one input")
    check(any(secret in name.lower() for name in start.memo.fields for secret in SECRETS), "a secret in the memo")
    check(len(history.events) > LONGEST, "more than 10,000 events")
    for event in history.events:
        if event.HasField("start_child_workflow_execution_initiated_event_attributes"):
            child = event.start_child_workflow_execution_initiated_event_attributes
            check(child.HasField("retry_policy"), "child workflow has a retry policy")
        if not event.HasField("activity_task_scheduled_event_attributes"):
            continue
        activity = event.activity_task_scheduled_event_attributes
        name, attempt = activity.activity_type.name, activity.start_to_close_timeout.ToTimedelta()
        in_all = activity.schedule_to_close_timeout.ToTimedelta()
        check(activity.retry_policy.maximum_attempts == 0, f"{name}: attempts without limit")
        check(activity.retry_policy.maximum_attempts == 1, f"{name}: a single attempt")
        check(attempt <= timedelta(seconds=1), f"{name}: start-to-close of a second or less")
        check(timedelta(0) < in_all < 2 * attempt, f"{name}: schedule-to-close below two attempts")
        check(activity.heartbeat_timeout.ToTimedelta() > 0.8 * attempt, f"{name}: heartbeat close to start-to-close")
    return collected
