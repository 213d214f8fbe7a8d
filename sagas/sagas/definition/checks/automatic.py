"""Checks of `compensate: auto`: that every statement of the step can be undone from images of its rows.

The database is not asked here: `saga setup`, `saga doctor` and the first run check keys, triggers and cascades.
"""

from __future__ import annotations

from collections.abc import Sequence

from sagas.definition.checks.arguments import literal_statements
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft
from sagas.definition.parser.operation_builder import is_automatic
from sagas.definition.parser.yaml_nodes import YamlNode, children_of
from sagas.sql_text.dialects import DATABASES
from sagas.sql_text.row_changes import NotImageable, analyse
from sagas.sql_text.tokens import UnreadableSql


def check_automatic(draft: SagaDraft, report: Report) -> None:
    """Check every step with `compensate: auto`."""
    for step in draft.steps:
        written = [
            operation
            for operation in step.operations
            if operation.role == "compensate" and is_automatic(operation.parsed)
        ]
        if written:
            _check_step(draft, step, written[0], report)


def _check_step(draft: SagaDraft, step: StepDraft, operation: OperationDraft, report: Report) -> None:
    arguments = step.operations[0].arguments
    if step.step.do.uses != "sql":
        message = f"`{step.id}` uses `{step.step.do.uses}`, and only the rows of `sql` can be restored"
        report.add("SAGA430", operation.position, message, "name an action that undoes the step")
        return
    if len([operation for operation in step.operations if operation.role == "compensate"]) > 1:
        report.add("SAGA430", operation.position, "`auto` has no alternates: it either restores all rows or parks")
    if operation.parsed.get("always"):
        message = "`auto` restores rows, and a step without an effect has changed none"
        report.add("SAGA430", operation.parsed.position_of("always"), message, "remove `always`")
    if "with" in operation.parsed:
        report.add("SAGA430", operation.parsed.position_of("with"), "`auto` has no arguments")
    if "two_phase" in children_of(arguments):
        report.add("SAGA430", operation.position, "a prepared transaction (`two_phase`) has its own undo")
    dialect = draft.project.dialect(step.step.do.connection)
    dialects = (dialect,) if dialect is not None else DATABASES
    for node in literal_statements(step.operations[0]):  # an expression in SQL is an error of its own
        _check_statement(node, dialects, report)


def _check_statement(node: YamlNode, dialects: Sequence[str], report: Report) -> None:
    """Report a statement that none of the dialects can undo."""
    refusals: list[NotImageable] = []
    for dialect in dialects:
        try:
            analyse(node.value, dialect)
        except NotImageable as refusal:
            refusals.append(refusal)
        except UnreadableSql:
            return  # SAGA406 says so
    if len(refusals) == len(dialects):
        report.add("SAGA430", node, refusals[0].message, refusals[0].help or None)
