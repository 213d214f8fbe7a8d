"""Reports arguments that would differ in another run of the same saga, under the same key of its participant."""

from __future__ import annotations

from collections.abc import Mapping

from sagas.definition.checks.expressions import written_in
from sagas.definition.diagnostics import Report
from sagas.definition.model import has_effect
from sagas.definition.parser.draft import OperationDraft, SagaDraft
from sagas.definition.parser.yaml_nodes import YamlNode

PassedResults = Mapping[str, YamlNode]
"""The results of `pass` steps as they are written, by the ids of the steps."""


def check_start_times(draft: SagaDraft, report: Report) -> None:
    """Warn if a participant outside of the guard gets the start of the saga, also as the result of a `pass`.

    A reset keeps it, and so does `saga resume` of a saga with effects in a guard. A saga that is started again after
    its run was deleted begins at another time.
    """
    passed: dict[str, YamlNode] = {}
    for step in draft.steps:
        for operation in step.operations:
            arguments = operation.arguments
            value = None if arguments is None else arguments.value
            if operation.operation.uses == "pass" and isinstance(value, dict) and "result" in value:
                passed[step.id] = value["result"]
    for step in draft.steps:
        for operation in step.operations:
            if operation.role != "probe" and not operation.operation.guarded and has_effect(step.step):
                _report(step.id, operation, passed, report)


def _report(step: str, operation: OperationDraft, passed: PassedResults, report: Report) -> None:
    for written in written_in(operation.arguments):
        for reference in written.expression.references:
            if _has_start(reference.path, passed):
                message = (
                    f"`{step}` sends `saga.started_at`, which differs if the saga is started again after its run was "
                    "deleted: its participant then gets the same key with other arguments"
                )
                report.add("SAGA315", written.node.position_at(written.start + reference.offset), message)
                return


def _has_start(path: tuple[str, ...], passed: PassedResults) -> bool:
    """Return whether the value of a path may contain the start of the saga."""
    match path:
        case ("saga",) | ("saga", "started_at", *_):
            return True
        case ("steps", step) | ("steps", step, "result", *_) if step in passed:
            node = passed[step]
        case _:
            return False
    for name in path[3:]:
        if isinstance(node.value, dict) and name in node.value:
            node = node.value[name]
    others = {id: result for id, result in passed.items() if id != step}
    return any(
        _has_start(reference.path, others)
        for written in written_in(node)
        for reference in written.expression.references
    )
