"""Checks `sql` steps with `two_phase`: where a prepared transaction is possible, and what the engine brings itself."""

from __future__ import annotations

from sagas.builtins.two_phase import TWO_PHASE
from sagas.definition.diagnostics import Positioned, Report
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft
from sagas.definition.parser.yaml_nodes import children_of

_BROUGHT_BY_THE_ENGINE = ("compensate", "confirm")


def check_two_phase(draft: SagaDraft, report: Report) -> None:
    """Check every `two_phase` that is written."""
    for step in draft.steps:
        for operation in step.operations:
            node = children_of(operation.arguments).get(TWO_PHASE) if operation.operation.uses == "sql" else None
            if node is None:
                continue
            if isinstance(node.value, str):
                message = "`two_phase` must be true or false, not an expression, because it decides how the step ends"
                report.add("SAGA423", node, message)
            elif node.value is True and operation.arguments is not None:
                position = operation.arguments.key_position(TWO_PHASE)
                _check_place(draft, step, operation, position, report)


def _check_place(
    draft: SagaDraft, step: StepDraft, operation: OperationDraft, position: Positioned, report: Report
) -> None:
    connection = operation.operation.connection
    reason = None
    if operation.role != "do":
        reason = f"only `{step.id}` itself can be prepared, not its {operation.role}"
    elif step.step.pivot:
        reason = f"the pivot `{step.id}` decides about the saga, so its transaction cannot wait for the decision"
    elif step.reads:
        reason = f"`{step.id}` only reads, so there is nothing to prepare"
    elif step.after_commit:
        reason = f"`{step.id}` comes after the commit point, where nothing is left to wait for"
    elif draft.project.dialect(connection) == "sqlite":
        reason = f"SQLite has no prepared transactions (connection `{connection}`)"
    if reason is not None:
        report.add("SAGA423", position, reason)
        return
    for field in _BROUGHT_BY_THE_ENGINE:
        if step.parsed.get(field):
            message = f"`{step.id}` is committed and rolled back by the engine, so it cannot have `{field}`"
            report.add("SAGA424", step.parsed.position_of(field), message)
