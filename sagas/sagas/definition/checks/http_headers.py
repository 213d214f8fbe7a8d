"""Checks the headers that `http` operations write: those of the engine would be refused before the request is sent."""

from __future__ import annotations

from sagas.builtins.http_headers import DEFAULT_KEY_HEADER, reserved_headers
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import OperationDraft, SagaDraft
from sagas.definition.parser.yaml_nodes import children_of


def check_http_headers(draft: SagaDraft, report: Report) -> None:
    """Report headers that the engine or the connection sets."""
    for step in draft.steps:
        for operation in step.operations:
            if operation.operation.uses == "http":
                _check_operation(draft, operation, report)
    for operation in draft.notify:
        if operation.operation.uses == "http":
            _check_operation(draft, operation, report)


def _check_operation(draft: SagaDraft, operation: OperationDraft, report: Report) -> None:
    headers = children_of(operation.arguments).get("headers")
    if headers is None:
        return
    facts = draft.project.connection_facts((operation.operation.with_ or {}).get("connection"))
    own = facts.get("key_header", DEFAULT_KEY_HEADER)
    reserved = reserved_headers([own] if own else [])
    for name in children_of(headers):
        if name.lower() in reserved:
            message = f"the header `{name}` of `http` is set by the engine or the connection"
            report.add("SAGA418", headers.key_position(name), message)
