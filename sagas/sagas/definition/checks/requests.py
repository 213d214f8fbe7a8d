"""Commands with replies: a home for the rows, a reply topic that is written out, no headers of the engine's own."""

from __future__ import annotations

from sagas.builtins_messaging import is_reserved
from sagas.builtins_request import REQUEST
from sagas.definition.checks.messaging import check_home
from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, OperationDraft, StepDraft
from sagas.definition.request_operations import has_reply_probe


def check_requests(draft: Draft, report: Report) -> None:
    """All operations that are commands with a reply."""
    for step in draft.steps:
        for operation in step.operations:
            if operation.operation.uses == REQUEST:
                check_home(draft, REQUEST, operation.place, report)
                _check_arguments(operation, report)
                _check_beats(step, operation, report)
        if step.step.do.uses == REQUEST:
            _check_useless(step, report)


def _check_arguments(operation: OperationDraft, report: Report) -> None:
    node = operation.arguments
    given = node.value if node is not None and isinstance(node.value, dict) else {}
    reply_topic, headers = given.get("reply_topic"), given.get("headers")
    if reply_topic is not None and isinstance(reply_topic.value, str) and "${{" in reply_topic.value:
        message = "who listens for replies reads `reply_topic` in the definitions, so it cannot be an expression"
        report.add("SAGA415", reply_topic, message)
    if headers is None or not isinstance(headers.value, dict):
        return
    for name in headers.value:
        if is_reserved(name):
            report.add("SAGA416", headers.key(name), f"the header `{name}` of `{REQUEST}` is the engine's own")


def _check_beats(step: StepDraft, operation: OperationDraft, report: Report) -> None:
    if "heartbeat" in operation.parsed:
        place = operation.parsed.place("heartbeat")
        message = f"`heartbeat` of `{step.id}` has no effect because no worker holds an attempt that waits for a reply"
        report.add("SAGA118", place, message)


def _check_useless(step: StepDraft, report: Report) -> None:
    because = {"idempotent": "because a command is written once, whatever is tried again"}
    if has_reply_probe(step.step):
        because["settle"] = "because the reply is looked for where it is recorded"
    for field, why in because.items():
        if field in step.parsed:
            report.add("SAGA118", step.parsed.place(field), f"`{field}` of `{step.id}` has no effect {why}")
