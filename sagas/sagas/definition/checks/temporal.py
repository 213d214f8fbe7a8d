"""Times and retries that contradict each other, or that Temporal's own Web UI would flag."""

from __future__ import annotations

from sagas.builtins import BUILTINS
from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, OperationDraft, StepDraft
from sagas.definition.durations import format_duration

SHORT = 1.0
HEARTBEAT_SHARE = 0.8


def check_temporal(draft: Draft, report: Report) -> None:
    """`timeout`, `heartbeat` and `retry` of every operation that becomes a Temporal activity."""
    for step in draft.steps:
        for operation in step.operations:
            builtin = BUILTINS.get(operation.operation.uses)
            if builtin is None or builtin.where != "engine":
                _check_times(step, operation, report)
                _check_retry(step, operation, report)


def _check_times(step: StepDraft, draft: OperationDraft, report: Report) -> None:
    operation, parsed = draft.operation, draft.parsed
    timeout, heartbeat = operation.timeout, operation.heartbeat
    if "timeout" in parsed and timeout <= SHORT and step.step.execution == "remote":
        report.add("SAGA230", parsed.at("timeout"), f"`{step.id}` has only {format_duration(timeout)} per attempt")
    if heartbeat is None or not ("heartbeat" in parsed or "timeout" in parsed or draft.role == "do"):
        return
    place = next((parsed.at(name) for name in ("heartbeat", "timeout") if name in parsed), parsed.node)
    beat, limit = format_duration(heartbeat), format_duration(timeout)
    if heartbeat >= timeout:
        report.add("SAGA114", place, f"the heartbeat of `{step.id}` ({beat}) is not shorter than its timeout ({limit})")
    elif heartbeat > HEARTBEAT_SHARE * timeout:
        report.add(
            "SAGA233", place, f"the heartbeat of `{step.id}` ({beat}) is nearly as long as its timeout ({limit})"
        )


def _check_retry(step: StepDraft, draft: OperationDraft, report: Report) -> None:
    written = draft.parsed.get("retry")
    if written is None:
        return
    retry, timeout = draft.operation.retry, draft.operation.timeout
    if "max_interval" in written and retry.max_interval < retry.initial_interval:
        report.add(
            "SAGA106",
            written.at("max_interval"),
            "`max_interval` is shorter than `initial_interval`",
            "Make it longer.",
        )
    if "max_attempts" in written and retry.max_attempts == 1:
        report.add("SAGA231", written.at("max_attempts"), f"`{step.id}` is tried only once")
    if retry.give_up_after is not None and retry.give_up_after < 2 * timeout:
        limit = format_duration(timeout)
        report.add("SAGA232", written.at("give_up_after"), f"`{step.id}` may need {limit} for its first attempt alone")
