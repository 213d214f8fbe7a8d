"""Checks of isolation: declarations that do not hold, and anomalies that a definition is sure to allow."""

from __future__ import annotations

from sagas.definition.analysis.sql_anomalies import lost_updates, non_commutative_statement, uncommitted_reads
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import SagaDraft, StepDraft


def check_isolation(draft: SagaDraft, report: Report) -> None:
    """Check what `commutative` declares, lost updates, and decisions about effects that others may still undo."""
    for step in draft.steps:
        if step.parsed.get("commutative"):
            _check_commutative(step, report)
        position = step.parsed.node_of("uses")
        for lost in lost_updates(draft.definition, step.step):
            message = (
                f"`{step.id}` sets `{lost.column}` of `{lost.table}` to a value computed from what `{lost.read}` has "
                f"read, so an update of another saga in between is lost"
            )
            report.add("SAGA260", position, message)
        for read, table, writer in uncommitted_reads(draft.definition, step.step):
            message = (
                f"`{step.id}` is never undone and relies on what `{read}` has read from `{table}`, which another run "
                f"changes in `{writer}` and may still undo"
            )
            report.add("SAGA262", position, message)


def _check_commutative(step: StepDraft, report: Report) -> None:
    position = step.parsed.position_of("commutative")
    if step.reads:
        report.add("SAGA261", position, f"`{step.id}` only reads", "remove `commutative`")
    elif (statement := non_commutative_statement(step.step)) is not None:
        shown = " ".join(statement.split())
        shown = shown if len(shown) <= 100 else shown[:99] + "…"
        report.add("SAGA261", position, f"the result of a statement of `{step.id}` depends on the order: {shown}")
