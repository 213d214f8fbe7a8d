"""The literal SQL of `sql` steps: what the guard refuses in every database is said before anything runs."""

from __future__ import annotations

from collections.abc import Iterator

from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, OperationDraft
from sagas.definition.source import Node
from sagas.definition.statements import RefusedStatement, checked

_DIALECTS = ("postgresql", "mysql", "sqlite")


def check_statements(draft: Draft, report: Report) -> None:
    """Every statement that is written out, of every operation."""
    for step in draft.steps:
        for operation in step.operations:
            if operation.operation.uses == "sql":
                for node in _statements(operation):
                    _check(node, report)


def _statements(operation: OperationDraft) -> Iterator[Node]:
    """The texts below `run`, without those that an expression makes."""
    arguments = operation.arguments
    run = arguments.value.get("run") if arguments is not None and isinstance(arguments.value, dict) else None
    if run is None:
        return
    for one in run.value if isinstance(run.value, list) else [run]:
        text = one.value.get("sql") if isinstance(one.value, dict) else one
        if text is not None and isinstance(text.value, str) and text.value and "${{" not in text.value:
            yield text


def _check(node: Node, report: Report) -> None:
    """The connection's database is known only where its address is, so all of them have to refuse it."""
    refusals: list[RefusedStatement] = []
    for dialect in _DIALECTS:
        try:
            checked(node.value, dialect)
        except RefusedStatement as refusal:
            refusals.append(refusal)
    if len(refusals) == len(_DIALECTS):
        report.add("SAGA406", node, refusals[0].message, refusals[0].help or None)
