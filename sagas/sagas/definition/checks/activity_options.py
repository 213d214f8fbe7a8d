"""Checks timeouts, heartbeats and retry policies for contradictions, and reports fields without effect."""

from __future__ import annotations

from sagas.builtins.registry import BUILTINS
from sagas.definition.diagnostics import Report
from sagas.definition.model import Retry
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft
from sagas.definition.parser.field_types import ParsedMapping
from sagas.definition.times import format_duration

SHORT_TIMEOUT = 1.0
MAX_HEARTBEAT_RATIO = 0.8


def check_activity_options(draft: SagaDraft, report: Report) -> None:
    """Check `timeout`, `heartbeat` and `retry` of every operation that becomes a Temporal activity."""
    for step in draft.steps:
        for operation in step.operations:
            builtin = BUILTINS.get(operation.operation.uses)
            if builtin is None or builtin.executor != "engine":
                _check_times(step, operation, report)
                _check_retry(step, operation, report)


def _check_times(step: StepDraft, draft: OperationDraft, report: Report) -> None:
    operation, parsed = draft.operation, draft.parsed
    timeout, heartbeat = operation.timeout, operation.heartbeat
    if "timeout" in parsed and step.step.execution == "remote":
        check_short_timeout(parsed, timeout, f"`{step.id}`", report)
    if heartbeat is None or not ("heartbeat" in parsed or "timeout" in parsed or draft.role == "do"):
        return
    position = next((parsed.node_of(name) for name in ("heartbeat", "timeout") if name in parsed), parsed.node)
    beat, limit = format_duration(heartbeat), format_duration(timeout)
    if heartbeat >= timeout:
        report.add(
            "SAGA114", position, f"the heartbeat of `{step.id}` ({beat}) is not shorter than its timeout ({limit})"
        )
    elif heartbeat > MAX_HEARTBEAT_RATIO * timeout:
        report.add(
            "SAGA233", position, f"the heartbeat of `{step.id}` ({beat}) is nearly as long as its timeout ({limit})"
        )


def check_short_timeout(parsed: ParsedMapping, timeout: float, what: str, report: Report) -> None:
    """Warn about the `timeout` of ``parsed`` if it is very short. ``what``: whose it is, in words."""
    if timeout <= SHORT_TIMEOUT:
        report.add("SAGA230", parsed.node_of("timeout"), f"{what} has only {format_duration(timeout)} per attempt")


def _check_retry(step: StepDraft, draft: OperationDraft, report: Report) -> None:
    written = draft.parsed.get("retry")
    if written is not None:
        check_retry_values(written, draft.operation.retry, draft.operation.timeout, f"`{step.id}`", report)


def check_retry_values(written: ParsedMapping, retry: Retry, timeout: float, what: str, report: Report) -> None:
    """Check the fields of a `retry` against each other and against the ``timeout`` of one attempt, in seconds.

    ``what``: whose they are, in words.
    """
    if "max_interval" in written and retry.max_interval < retry.initial_interval:
        default = "" if "initial_interval" in written else "the default "
        first = f"{default}`initial_interval`, {format_duration(retry.initial_interval)}"
        report.add(
            "SAGA106",
            written.node_of("max_interval"),
            f"`max_interval` is shorter than {first}",
            "raise max_interval, or lower initial_interval",
        )
    if "max_attempts" in written and retry.max_attempts == 1:
        report.add("SAGA231", written.node_of("max_attempts"), f"{what} has only one attempt")
    if retry.give_up_after is not None and retry.give_up_after < 2 * timeout:
        limit = format_duration(timeout)
        report.add("SAGA232", written.node_of("give_up_after"), f"{what} may need {limit} for its first attempt alone")


_FORWARD_FIELDS = ("heartbeat", "retry")
_ACTIVITY_FIELDS = ("timeout", "task_queue", "priority", "fairness_key")
_UNGUARDED_FIELDS = ("idempotent", "remembers_rejections", "settle", "probe")


def check_no_effect_fields(draft: SagaDraft, report: Report) -> None:
    """Warn about each field that has no effect."""
    for step in draft.steps:
        do = step.step.do
        builtin = BUILTINS.get(do.uses)
        if builtin is not None and builtin.executor == "engine":
            # Its undo has them from the step.
            fields = (*_FORWARD_FIELDS, *_UNGUARDED_FIELDS, *(() if step.step.compensations else _ACTIVITY_FIELDS))
            _warn_without_effect(step, fields, f"because `{do.uses}` runs no activity", report)
        elif do.guarded:
            _warn_without_effect(step, _UNGUARDED_FIELDS, "because the guard already knows every outcome", report)
        if step.step.for_each is None:
            _warn_without_effect(step, ("max_parallel",), "without `for_each`", report)


def _warn_without_effect(step: StepDraft, fields: tuple[str, ...], why: str, report: Report) -> None:
    for field in fields:
        if field in step.parsed:
            report.add("SAGA118", step.parsed.position_of(field), f"`{field}` of `{step.id}` has no effect {why}")
