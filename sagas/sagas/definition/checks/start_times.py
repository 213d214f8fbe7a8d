"""Reports arguments that would differ in another run of the same saga, under the same key of its participant."""

from __future__ import annotations

from sagas.definition.checks.expressions import written_in
from sagas.definition.diagnostics import Report
from sagas.definition.model import has_effect
from sagas.definition.parser.draft import OperationDraft, SagaDraft

_STARTED_AT = ("saga", "started_at")


def check_start_times(draft: SagaDraft, report: Report) -> None:
    """Warn if a participant outside of the guard gets the start of the saga.

    A reset keeps it, and so does `saga resume` of a saga with effects in a guard. A saga that is started again after
    its run was deleted begins at another time.
    """
    for step in draft.steps:
        for operation in step.operations:
            if operation.role != "probe" and not operation.operation.guarded and has_effect(step.step):
                _report(step.id, operation, report)


def _report(step: str, operation: OperationDraft, report: Report) -> None:
    for written in written_in(operation.arguments):
        for reference in written.expression.references:
            if reference.path[:2] == _STARTED_AT:
                message = (
                    f"`{step}` sends `saga.started_at`, which differs if the saga is started again after its run was "
                    "deleted: its participant then gets the same key with other arguments"
                )
                report.add("SAGA315", written.node.position_at(written.start + reference.offset), message)
                return
