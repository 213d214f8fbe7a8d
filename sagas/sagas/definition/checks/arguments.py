"""Checks that every `uses` names an action, and that every `with` fits its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sagas.builtins.argument_groups import group_mistakes
from sagas.builtins.automatic import AUTO, RESTORE
from sagas.builtins.messaging import EMITTERS
from sagas.builtins.misplaced_arguments import misplaced_arguments
from sagas.builtins.registry import BUILTINS
from sagas.definition.action_arguments import CONVERSIONS
from sagas.definition.checks.expressions import operation_scope, template_type
from sagas.definition.diagnostics import Positioned, Report, suggestion_help
from sagas.definition.literal_values import argument_mistakes
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft
from sagas.definition.parser.operation_builder import NO_OP_ACTIONS, is_automatic
from sagas.definition.parser.other_names import ADDRESS_HELP, ARGUMENTS, NO_OTHER_NAMES
from sagas.definition.parser.yaml_nodes import YamlNode, children_of
from sagas.definition.schema_messages import TYPE_DESCRIPTIONS, describe_types
from sagas.definition.schema_mismatches import mismatches
from sagas.definition.schema_types import types_at
from sagas.errors import nearest
from sagas.sql_text.dialects import dialect_of_url

if TYPE_CHECKING:
    from sagas.actions.registry import Action


def check_arguments(draft: SagaDraft, report: Report) -> None:
    """Check actions, arguments and connections of all operations."""
    for step in draft.steps:
        forward = step.operations[0]
        for operation in step.operations:
            check_operation(draft, operation, forward, report, step)


def check_operation(
    draft: SagaDraft,
    operation: OperationDraft,
    forward: OperationDraft,
    report: Report,
    step: StepDraft | None = None,
) -> None:
    """Check one operation; ``forward`` provides the arguments of a short form. ``step`` is None for a notification."""
    uses = operation.operation.uses
    action = draft.project.actions.get(uses)
    if action is not None:
        _check_action(operation, forward, action, report)
        _check_computed(draft, step, operation, forward, action, report)
        if action.connection is not None:
            check_connection(draft, uses, action.connection, "sql", operation.position, report)
    elif uses in NO_OP_ACTIONS:
        return  # checked together with the events
    elif uses in BUILTINS:
        _check_builtin(draft, operation, forward, report)
    elif uses == RESTORE and is_automatic(operation.parsed):
        return  # checked with the statements that it undoes
    elif operation.operation.local:
        actions = (*draft.project.actions, *BUILTINS, *((AUTO,) if operation.role == "compensate" else ()))
        help = suggestion_help(uses, actions)
        report.add("SAGA401", operation.position, f"there is no action `{uses}`", help or None)


def _written_arguments(operation: OperationDraft, forward: OperationDraft) -> tuple[Mapping[str, YamlNode], bool]:
    """The arguments as written, and whether they are the frozen arguments of the forward call."""
    frozen = operation.operation.with_ is None
    node = (forward if frozen else operation).arguments
    return children_of(node), frozen


def _check_action(operation: OperationDraft, forward: OperationDraft, action: Action, report: Report) -> None:
    given, frozen = _written_arguments(operation, forward)
    signature = action.signature
    where = " (it receives the arguments of the forward call)" if frozen else ""
    node = operation.arguments or operation.parsed.node

    def place_of(name: str) -> Positioned:
        return operation.position if frozen else node.key_position(name)

    meant: set[str | None] = set()
    for name, value in given.items():
        parameter = signature.find(name)
        if parameter is None:
            names = [parameter.name for parameter in signature.parameters]
            meant.add(nearest(name, names))
            takes = ", ".join(f"`{name}`" for name in names) or "none"
            instead = f"; to give it others, write {{uses: {action.name}, with: {{…}}}}" if frozen else ""
            help = suggestion_help(name, names, f"it takes {takes}{instead}")
            report.add("SAGA403", place_of(name), f"`{action.name}` has no argument `{name}`{where}", help)
        elif not value.has_expression:  # its value is unknown, so no schema is needed
            mistakes = list(mismatches(value, parameter.schema, parameter.schema))
            for place, message in mistakes or argument_mistakes(parameter.schema_text, value):
                position = operation.position if frozen else place
                report.add("SAGA404", position, f"argument `{name}` of `{action.name}`{where}: {message}")
    for argument in signature.twice(given):
        message = f"`{argument.variable}` and `{argument.name}` name the same argument of `{action.name}`{where}"
        report.add("SAGA113", place_of(argument.variable), message)
    for argument in signature.missing({**(operation.operation.with_ or {}), **given}):
        if argument.name in meant:
            continue  # its name is misspelled, which is reported
        position = operation.position if frozen or operation.arguments is None else node
        report.add("SAGA402", position, f"`{action.name}` needs the argument `{argument.name}`{where}")


def _check_computed(
    draft: SagaDraft,
    step: StepDraft | None,
    operation: OperationDraft,
    forward: OperationDraft,
    action: Action,
    report: Report,
) -> None:
    """Report expressions whose value certainly has another type than the parameter."""
    given, frozen = _written_arguments(operation, forward)
    scope = operation_scope(draft, forward if frozen else operation, step)
    for name, value in given.items():
        parameter = action.signature.find(name)
        if parameter is None:
            continue  # reported
        for node, path in _with_expressions(value, ()):
            allowed, kind = types_at(parameter.schema, path), template_type(node, scope)
            if kind is None or not allowed or kind in allowed or (kind == "number" and "integer" in allowed):
                continue
            kinds = [kind for kind in TYPE_DESCRIPTIONS if kind in allowed]
            kinds = [kind for kind in kinds if kind != "integer" or "number" not in kinds]
            conversion = next((CONVERSIONS[kind] for kind in kinds if kind in CONVERSIONS), None)
            message = f"argument `{'.'.join((name, *path))}` of `{action.name}`: expected {describe_types(kinds)}"
            help = f"convert it with {conversion}" if conversion and kind not in ("array", "object", "null") else None
            position = operation.position if frozen else node
            report.add("SAGA404", position, f"{message}, and this is {TYPE_DESCRIPTIONS[kind]}", help)


def _with_expressions(node: YamlNode, path: tuple[str, ...]) -> Iterator[tuple[YamlNode, tuple[str, ...]]]:
    """The strings with expressions in a value and in the mappings inside it, with their paths."""
    if node.has_expression:
        yield node, path
    for name, child in children_of(node).items():
        yield from _with_expressions(child, (*path, name))


def _check_builtin(draft: SagaDraft, operation: OperationDraft, forward: OperationDraft, report: Report) -> None:
    uses = operation.operation.uses
    given, frozen = _written_arguments(operation, forward)
    written = operation.arguments
    schema = BUILTINS[uses].parameters
    properties = schema["properties"]
    effective = (forward if frozen else operation).operation.with_ or {}
    for name, node in list(given.items()):
        position = written.key_position(name) if written is not None else operation.position
        if name not in properties:
            others = ARGUMENTS.get(uses, NO_OTHER_NAMES)
            takes = ", ".join(f"`{argument}`" for argument in properties)
            help = others.help(name, properties, f"it takes {takes}")
            meant = others.meant(name, properties)
            if written is not None and meant is not None and meant not in written.value:
                written.rename(name, meant)  # else the meant one would seem to be missing
                effective = {**effective, meant: node.to_json()}
            report.add("SAGA403", position, f"`{uses}` has no argument `{name}`", help)
        else:
            for place, message in mismatches(node, properties[name], properties[name]):
                report.add("SAGA404", place, f"argument `{name}` of `{uses}`: {message}")
    position = written or operation.position
    for name in schema["required"]:
        if name not in effective:
            report.add("SAGA402", position, f"`{uses}` needs the argument `{name}`")
    if uses not in EMITTERS:  # whose events are checked one by one
        for mistake in group_mistakes(uses, effective):
            report.add(mistake.code, position, mistake.message, mistake.help)
    if written is not None and isinstance(written.value, dict):
        _check_misplaced(uses, written, effective, report)
    _check_written_connection(draft, uses, effective.get("connection"), written, position, report)


def _check_misplaced(uses: str, written: YamlNode, effective: Mapping[str, Any], report: Report) -> None:
    """Report arguments that would be ignored; ``effective`` has the method of a notification."""
    arguments = written.to_json()
    if uses == "http" and "method" in effective:
        arguments["method"] = effective["method"]
    for misplaced in misplaced_arguments(uses, arguments):
        *parents, name = misplaced.path
        node = written
        for part in parents:
            node = node.value[part]
        report.add("SAGA427", node.key_position(str(name)), misplaced.message, misplaced.help)


def _check_written_connection(
    draft: SagaDraft, uses: str, connection: Any, written: YamlNode | None, position: Positioned, report: Report
) -> None:
    if not isinstance(connection, str):
        return
    if written is not None and isinstance(written.value, dict) and "connection" in written.value:
        position = written.value["connection"]
    if "${{" not in connection:
        check_connection(draft, uses, connection, BUILTINS[uses].executor, position, report)
    elif BUILTINS[uses].executor == "sql":
        message = f"the connection of `{uses}` decides where the guard is, so it cannot be an expression"
        report.add("SAGA405", position, message)


def check_connection(
    draft: SagaDraft, uses: str, connection: str, kind: str, position: Positioned, report: Report
) -> None:
    """Check that the connection of ``uses`` is in saga.toml and of the right kind."""
    if draft.project.connections is None:
        return
    table = draft.project.connections.get(connection)
    if table is None and "://" in connection:  # which may contain a password
        report.add("SAGA405", position, f"the connection of `{uses}` is an address, not a name", ADDRESS_HELP)
    elif table is None:
        connections = [
            name for name, settings in draft.project.connections.items() if settings.get("kind", "sql") == kind
        ]
        help = suggestion_help(connection, connections, "add it to saga.toml under [connections]")
        report.add(
            "SAGA405", position, f"`{uses}` uses the connection `{connection}`, which saga.toml does not have", help
        )
    elif table.get("kind", "sql") != kind:
        report.add(
            "SAGA405", position, f"`{uses}` needs a connection of kind {kind}, and `{connection}` is of another kind"
        )
    elif kind == "sql" and table.get("url") and dialect_of_url(str(table["url"])) is None:
        scheme = str(table["url"]).partition(":")[0]
        message = f"`{uses}` uses the connection `{connection}`, and databases of `{scheme}:` are not supported"
        report.add("SAGA405", position, message, "use PostgreSQL, MySQL, MariaDB or SQLite")


def literal_statements(operation: OperationDraft) -> Iterator[YamlNode]:
    """The literal strings below `run`, without those that contain an expression."""
    arguments = operation.arguments
    run = children_of(arguments).get("run")
    if run is None:
        return
    for statement in run.value if isinstance(run.value, list) else [run]:
        text = statement.value.get("sql") if isinstance(statement.value, dict) else statement
        if text is not None and isinstance(text.value, str) and text.value and "${{" not in text.value:
            yield text
