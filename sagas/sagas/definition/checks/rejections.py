"""Checks what a step declares about the rejections of its participant."""

from __future__ import annotations

from sagas.builtins.http_statuses import IN_PROGRESS, status_matches, written_statuses
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import SagaDraft, StepDraft

_FIELD = "remembers_rejections"


def check_rejections(draft: SagaDraft, report: Report) -> None:
    """Warn where a rejection may mean that an earlier request is in progress, once for each connection, and about a
    promise without a key.
    """
    asked: set[str] = set()
    for step in draft.steps:
        do = step.step.do
        if do.uses == "http":
            _check_overlap(step, report)
        if do.guarded or step.reads:
            continue
        if _FIELD in step.parsed and step.parsed.get(_FIELD) and not do.idempotent:
            message = f"`{_FIELD}` of `{step.step.id}` has no effect because the participant does not honour the key"
            report.add("SAGA118", step.parsed.position_of(_FIELD), message)
        elif do.uses == "http" and do.idempotent and _FIELD not in step.parsed:
            connection = (do.with_ or {}).get("connection")
            name = connection if isinstance(connection, str) else step.step.id
            if name not in asked and _FIELD not in draft.project.connection_facts(connection):
                asked.add(name)
                _check_statuses(step, report)


def _check_overlap(step: StepDraft, report: Report) -> None:
    """`done` takes precedence: a range such as 4xx may be wider than what remains of it, a single status may not."""
    lists = step.step.do.with_ or {}
    done = written_statuses(lists, "done")
    for status in written_statuses(lists, "rejected"):
        if isinstance(status, int) and status_matches(status, done):
            message = f"the status {status} in `rejected` of `{step.step.id}` has no effect because `done` has it"
            report.add("SAGA118", step.parsed.node_of("uses"), message)


def _check_statuses(step: StepDraft, report: Report) -> None:
    patterns = written_statuses(step.step.do.with_ or {}, "rejected")
    if ambiguous := [str(status) for status in IN_PROGRESS if status_matches(status, patterns)]:
        message = (
            f"the participant of `{step.step.id}` may answer {' or '.join(ambiguous)} while an earlier request with "
            "the same key is in progress"
        )
        report.add("SAGA223", step.parsed.node_of("uses"), message)
