"""Checks of isolation: `locks`, what `commutative` declares, and anomalies that a definition is sure to allow."""

from __future__ import annotations

from sagas.definition.analysis.lock_keys import checked_lock_keys
from sagas.definition.analysis.sql_anomalies import lost_updates, non_commutative_statement, uncommitted_reads
from sagas.definition.diagnostics import Report, suggestion_help
from sagas.definition.model import checked_entry
from sagas.definition.parser.draft import SagaDraft, StepDraft
from sagas.definition.parser.field_types import ParsedMapping, quoted_names
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.input_limits import MAX_LOCK_KEYS
from sagas.text.shortening import shorten


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
        shown = shorten(" ".join(statement.split()), 100)
        report.add("SAGA261", position, f"the result of a statement of `{step.id}` depends on the order: {shown}")


def check_locks(draft: SagaDraft, report: Report) -> None:
    """Check the database of `locks`, its keys, and its place in the graph."""
    locks: ParsedMapping | None = draft.root.get("locks")
    if locks is None:
        return
    if draft.project.connections is not None and draft.project.locks is None:
        report.add("SAGA250", draft.root.position_of("locks"), "the project has no database for the rows of its locks")
    if "keys" in locks:
        _check_keys(locks.node_of("keys"), report)
    if "from" in locks:
        _check_from(draft, locks, report)
    if draft.definition.recovery == "forward" and locks.get("until") == "commit":
        report.add(
            "SAGA251", locks.node_of("until"), "with `recovery: forward` nothing is left before the commit point"
        )


def _check_keys(node: YamlNode, report: Report) -> None:
    """Check the keys without expressions; the others are checked when the saga requests them."""
    if not isinstance(node.value, list):
        return
    if not node.value or len(node.value) > MAX_LOCK_KEYS:
        report.add("SAGA253", node, f"a saga has 1 to {MAX_LOCK_KEYS} keys, not {len(node.value)}")
    for key in node.value:
        if isinstance(key.value, str) and "${{" in key.value:
            continue
        try:
            checked_lock_keys([key.to_json()])
        except ValueError as error:
            report.add("SAGA253", key, str(error).removeprefix("locks.keys: "))


def _check_from(draft: SagaDraft, locks: ParsedMapping, report: Report) -> None:
    node, step = locks.node_of("from"), locks.get("from")
    steps = [id for id in draft.steps_by_id if checked_entry(id) is None]
    if step not in steps:
        if step is not None:
            help = suggestion_help(step, steps, f"the steps are {quoted_names(steps)}")
            report.add("SAGA201", node, f"`from` names `{step}`, which is not a step", help)
        return
    pivot, graph = draft.pivot, draft.graph
    if draft.definition.recovery == "forward":
        report.add("SAGA251", node, "with `recovery: forward` no step runs before the commit point")
    elif pivot is not None and step != pivot.id and not graph.is_ancestor(step, pivot.id):
        report.add("SAGA251", node, f"`{step}` does not always run before the pivot `{pivot.id}`")
    for other in draft.steps:
        unordered = other.id != step and not graph.is_ancestor(other.id, step) and not graph.is_ancestor(step, other.id)
        if unordered and not other.reads:
            report.add("SAGA252", node, f"`{other.id}` runs in parallel with `{step}`, with or without the locks")
