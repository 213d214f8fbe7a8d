"""Every `uses` names an action, and every `with` fits its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sagas.builtins import BUILTINS, LATER
from sagas.definition.checks.literals import mismatches
from sagas.definition.diagnostics import Place, Report, did_you_mean
from sagas.definition.draft import Draft, OperationDraft
from sagas.definition.fields import LATER_ACTIONS
from sagas.definition.held_events import BRINGS_NOTHING
from sagas.definition.records import later_part
from sagas.definition.source import Node

if TYPE_CHECKING:
    from sagas.actions import Action

_TOGETHER = {"http": (("path", "url"), ("json", "form", "body")), "wait": (("for", "until", "signal"),)}


def check_arguments(draft: Draft, report: Report) -> None:
    """Actions, arguments and connections of all operations of all steps."""
    for step in draft.steps:
        forward = step.operations[0]
        for operation in step.operations:
            check_operation(draft, operation, forward, report)


def check_operation(draft: Draft, operation: OperationDraft, forward: OperationDraft, report: Report) -> None:
    """The action of one operation, its arguments and its connection; ``forward`` gives those of a short form."""
    uses = operation.operation.uses
    action = draft.actions.get(uses)
    if action is not None:
        _check_action(operation, forward, action, report)
        if action.connection is not None:
            check_connection(draft, uses, action.connection, "sql", operation.place, report)
    elif uses in BRINGS_NOTHING:
        return  # what it needs is said with the events
    elif uses in BUILTINS:
        _check_builtin(draft, operation, forward, report)
    elif uses == "auto" and operation.role == "compensate":
        later_part("compensate: auto", "automatic compensation", operation.place, report)
    elif uses in LATER_ACTIONS:
        later_part(uses, LATER_ACTIONS[uses], operation.place, report)
    elif operation.operation.local:
        known = (*draft.actions, *BUILTINS)
        help = did_you_mean(uses, known)
        report.add("SAGA401", operation.place, f"there is no action `{uses}`", help or None)


def _given(operation: OperationDraft, forward: OperationDraft) -> tuple[Mapping[str, Node], bool]:
    """The arguments as written, and whether they are the frozen ones of the forward call."""
    frozen = operation.operation.with_ is None
    node = (forward if frozen else operation).arguments
    return (node.value if node is not None and isinstance(node.value, dict) else {}), frozen


def _check_action(operation: OperationDraft, forward: OperationDraft, action: Action, report: Report) -> None:
    given, frozen = _given(operation, forward)
    signature = action.signature
    where = " (it gets the arguments of the forward call)" if frozen else ""
    node = operation.arguments or operation.parsed.node

    def place_of(name: str) -> Place:
        return operation.place if frozen else node.key(name)

    for name, value in given.items():
        parameter = signature.find(name)
        if parameter is None:
            names = [one.name for one in signature.parameters]
            takes = ", ".join(f"`{one}`" for one in names) or "none"
            help = did_you_mean(name, names, f"It takes {takes}.")
            report.add("SAGA403", place_of(name), f"`{action.name}` has no argument `{name}`{where}", help)
        elif not frozen and _has_literal(value):
            for place, message in mismatches(value, parameter.schema, parameter.schema):
                report.add("SAGA404", place, f"argument `{name}` of `{action.name}`: {message}")
    for one in signature.twice(given):
        message = f"`{one.variable}` and `{one.name}` are one argument of `{action.name}`{where}"
        report.add("SAGA113", place_of(one.variable), message)
    for one in signature.missing({**(operation.operation.with_ or {}), **given}):
        place = operation.place if frozen or operation.arguments is None else node
        report.add("SAGA402", place, f"`{action.name}` needs the argument `{one.name}`{where}")


def _has_literal(node: Node) -> bool:
    """False when the value is one text with an expression: then the schema is not even looked up."""
    return not (isinstance(node.value, str) and "${{" in node.value)


def _check_builtin(draft: Draft, operation: OperationDraft, forward: OperationDraft, report: Report) -> None:
    uses = operation.operation.uses
    given, frozen = _given(operation, forward)
    written = operation.arguments
    schema = BUILTINS[uses].parameters
    properties = schema["properties"]
    effective = (forward if frozen else operation).operation.with_ or {}
    for name, node in given.items():
        place = written.key(name) if written is not None else operation.place
        if name not in properties:
            takes = ", ".join(f"`{one}`" for one in properties if LATER not in properties[one])
            help = did_you_mean(name, properties, f"It takes {takes}.")
            report.add("SAGA403", place, f"`{uses}` has no argument `{name}`", help)
        elif LATER in properties[name]:
            later_part(name, properties[name][LATER], place, report)
        else:
            for at, message in mismatches(node, properties[name], properties[name]):
                report.add("SAGA404", at, f"argument `{name}` of `{uses}`: {message}")
    place = written or operation.place
    for name in schema["required"]:
        if name not in effective:
            report.add("SAGA402", place, f"`{uses}` needs the argument `{name}`")
    _check_together(uses, effective, place, report)
    _check_written_connection(draft, uses, effective.get("connection"), written, place, report)


def _check_written_connection(
    draft: Draft, uses: str, connection: Any, written: Node | None, place: Place, report: Report
) -> None:
    if not isinstance(connection, str):
        return
    if written is not None and isinstance(written.value, dict) and "connection" in written.value:
        place = written.value["connection"]
    if "${{" not in connection:
        check_connection(draft, uses, connection, BUILTINS[uses].where, place, report)
    elif BUILTINS[uses].where == "sql":
        message = f"the connection of `{uses}` decides where the guard is, so it cannot be an expression"
        report.add("SAGA405", place, message)


def _check_together(uses: str, given: Mapping[str, Any], place: Place, report: Report) -> None:
    for group in _TOGETHER.get(uses, ()):
        present = [name for name in group if name in given]
        if len(present) > 1:
            report.add("SAGA113", place, f"`{present[1]}` and `{present[0]}` of `{uses}` exclude each other")
    if uses == "http":
        if "path" not in given and "url" not in given:
            report.add("SAGA402", place, "`http` needs the argument `path` or `url`")
        elif "path" in given and "connection" not in given:
            report.add("SAGA402", place, "`http` needs the argument `connection` for a `path`")
    if uses == "wait":
        if not any(name in given for name in ("for", "until", "signal")):
            report.add("SAGA402", place, "`wait` needs one of the arguments `for`, `until` and `signal`")
        elif "signal" not in given:
            for name in ("timeout", "on_timeout"):
                if name in given:
                    report.add("SAGA113", place, f"`{name}` of `wait` goes with `signal` only")


def check_connection(draft: Draft, uses: str, connection: str, kind: str, place: Place, report: Report) -> None:
    """The connection that ``uses`` names is one of saga.toml, and of the right kind."""
    if draft.connections is None:
        return
    table = draft.connections.get(connection)
    if table is None:
        known = [name for name, one in draft.connections.items() if one.get("kind", "sql") == kind]
        help = did_you_mean(connection, known, "Add it to saga.toml under [connections].")
        report.add(
            "SAGA405", place, f"`{uses}` uses the connection `{connection}`, which saga.toml does not have", help
        )
    elif table.get("kind", "sql") != kind:
        report.add("SAGA405", place, f"`{uses}` needs a connection of kind {kind}, and `{connection}` is none")
