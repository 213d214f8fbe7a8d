"""Checks the callbacks of `http`: where one can be received, and what their settings need."""

from __future__ import annotations

from sagas.builtins.callbacks import CALLBACK
from sagas.builtins.registry import READ_METHODS
from sagas.definition.checks.expressions import written_in
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import OperationDraft, SagaDraft
from sagas.definition.parser.yaml_nodes import YamlNode, children_of
from sagas.expressions.nodes import path_of

_ADDRESS = ("step", "callback_url")


def check_callbacks(draft: SagaDraft, report: Report) -> None:
    """Report callbacks for which nothing waits, and all of them in a project that has no address for them."""
    operations = [operation for step in draft.steps for operation in step.operations]
    for operation in (*operations, *draft.notify):
        node = _callback(operation)
        _check_addresses(operation, report, has_callback=node is not None)
        if node is None:
            continue
        if (why := _why_none(operation)) is not None:
            report.add("SAGA419", node, why, "remove `callback`")
        elif draft.project.receives_callbacks is False:
            report.add("SAGA419", node, "the project has no address at which callbacks arrive")


def _check_addresses(operation: OperationDraft, report: Report, *, has_callback: bool) -> None:
    """Report a `step.callback_url` without a callback, and one in a larger expression, which has no address yet."""
    for written in written_in(operation.arguments) if operation.arguments is not None else ():
        for reference in written.expression.references:
            if reference.path[:2] != _ADDRESS or (has_callback and path_of(written.expression.node) == _ADDRESS):
                continue
            message = "`step.callback_url` has no meaning in a call without `callback`"
            help = "add `callback: {timeout: …}` to the arguments of `http`"
            if has_callback:
                message = "`step.callback_url` has its value when the request is sent, after expressions are evaluated"
                help = "write it by itself: ${{ step.callback_url }}"
            report.add("SAGA419", written.node.position_at(written.start + reference.offset), message, help)


def _callback(operation: OperationDraft) -> YamlNode | None:
    given = children_of(operation.arguments)
    return given.get(CALLBACK) if operation.operation.uses == "http" else None


def _why_none(operation: OperationDraft) -> str | None:
    if operation.role == "probe":
        return "a probe has no callback: its answer is what the saga needs now"
    if operation.role == "notify":
        return "a notification has no callback: it is delivered when it has been accepted"
    method = str((operation.operation.with_ or {}).get("method", "GET")).upper()
    return f"a {method} request only reads, and has no callback" if method in READ_METHODS else None
