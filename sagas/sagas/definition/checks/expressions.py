"""Checks that every expression parses, names only what is in scope, and calculates only with numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sagas.builtins.registry import BUILTINS, EXPRESSION, is_condition, marks_expressions
from sagas.definition.checks.missing_values import check_missing_values, check_refusal
from sagas.definition.checks.plain_paths import check_plain_paths
from sagas.definition.checks.scopes import ROOTS, ExpressionScope, ScopeKind
from sagas.definition.diagnostics import Position, Report
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft, kafka_triggers, schedule_trigger
from sagas.definition.parser.field_types import ParsedMapping
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.definition.saga_ids import saga_id_problem
from sagas.definition.schema_messages import TYPE_DESCRIPTIONS
from sagas.definition.sensitivity import is_sensitive
from sagas.expressions import (
    ANY_ELEMENT,
    Expression,
    ExpressionError,
    check_types,
    compile_expression,
    infer_type,
)
from sagas.expressions.nodes import path_of
from sagas.expressions.template_syntax import split_template

_SCOPES: dict[str, ScopeKind] = {
    "do": "do",
    "compensate": "undo",
    "confirmed": "undo",
    "confirm": "confirm",
    "probe": "probe",
}
_CALL_HELP = (
    "the functions are those of standard CEL, and sum, min, max, round, sort, join, split, lower, upper, date, "
    "default(x, y) and decimal(x)"
)
_TYPE_MISTAKES: dict[str, tuple[str, str | None]] = {
    "operator": ("SAGA304", None),
    "call": ("SAGA302", _CALL_HELP),
    "field": ("SAGA302", None),
    "comparison": ("SAGA312", None),
}
_UNREADABLE = ("SAGA112", "SAGA301")
_OF_MISSING_VALUES = ("SAGA305", "SAGA309", "SAGA310")
"""Findings that conditions and the schema of the input may rule out, so they follow from one that cannot be read."""

_PLAIN_TEXT = {
    "id": "the id",
    "labels": "a label",
    "keys": "the key of a lock",
    "fairness_key": "the fairness key",
    "message": "the message of a rejection",
}
"""Places whose values everybody may read who sees the run."""


def check_expressions(draft: SagaDraft, report: Report) -> None:
    """Check all expressions of a saga, each in the scope of its field."""
    top = draft.root
    for field in ("id", "labels"):
        if field in top:
            scope = ExpressionScope(draft, "top")
            check_plain_paths(top.node_of(field), scope, report)
            for written in written_in(top.node_of(field), report):
                _check_expression(written, scope, report)
                _check_sensitive(field, written, draft, report)
    if "id" in top:
        _check_id(top.node_of("id"), report)
    if "output" in top:
        _check_value(top.node_of("output"), ExpressionScope(draft, "output"), report)
        check_plain_paths(top.node_of("output"), ExpressionScope(draft, "output"), report)
    locks = top.get("locks")
    if locks is not None and "keys" in locks:
        _check_lock_keys(draft, locks, report)
    for trigger in kafka_triggers(top):
        for field in ("id", "input", "filter"):
            if field in trigger:
                _check_value(trigger.node_of(field), ExpressionScope(draft, "trigger"), report, bare=field == "filter")
        if "id" in trigger and not trigger.values.get("signal"):  # a signal may go to a nested saga
            _check_id(trigger.node_of("id"), report)
    if (schedule := schedule_trigger(top)) is not None:
        for field in ("id", "input"):
            if field in schedule:
                _check_value(schedule.node_of(field), ExpressionScope(draft, "schedule"), report)
        if "id" in schedule:
            _check_id(schedule.node_of("id"), report)
    for step in draft.steps:
        _check_step(draft, step, report)
    for operation in draft.notify:
        _check_arguments(operation, operation_scope(draft, operation, None), ExpressionScope(draft, "response"), report)
    if report.has(*_UNREADABLE):
        report.withdraw(*_OF_MISSING_VALUES)


def _check_lock_keys(draft: SagaDraft, locks: ParsedMapping, report: Report) -> None:
    """The keys see the results of the steps that run before they are taken."""
    step = draft.steps_by_id.get(locks.get("from", ""))
    scope = ExpressionScope(draft, "top") if step is None else ExpressionScope(draft, "decide", step)
    check_plain_paths(locks.node_of("keys"), scope, report)
    for written in written_in(locks.node_of("keys"), report):
        _check_expression(written, scope, report)
        _check_sensitive("keys", written, draft, report)


def operation_scope(draft: SagaDraft, operation: OperationDraft, step: StepDraft | None) -> ExpressionScope:
    """The scope of an operation's arguments; ``step`` is None for a notification."""
    if step is None:
        return ExpressionScope(draft, "notify", when=tuple(operation.parsed.get("when") or ()))
    return ExpressionScope(draft, _SCOPES[operation.role], step)


def _check_step(draft: SagaDraft, step: StepDraft, report: Report) -> None:
    parsed = step.parsed
    decide = ExpressionScope(draft, "decide", step)
    if "if" in parsed:
        _check_value(parsed.node_of("if"), decide, report, bare=True)
        _check_condition(parsed.node_of("if"), "if", decide, report)
    if "for_each" in parsed:
        _check_value(parsed.node_of("for_each"), decide, report)
        _check_items(parsed.node_of("for_each"), decide, report)
    if "fairness_key" in parsed:
        _check_value(parsed.node_of("fairness_key"), ExpressionScope(draft, "do", step), report)
        check_plain_paths(parsed.node_of("fairness_key"), ExpressionScope(draft, "do", step), report)
        for written in written_in(parsed.node_of("fairness_key")):
            _check_sensitive("fairness_key", written, draft, report, step)
    for operation in step.operations:
        _check_operation(draft, step, operation, report)
        arguments = operation.arguments.value if operation.arguments is not None else None
        if operation.operation.uses == "require" and isinstance(arguments, dict) and "message" in arguments:
            for written in written_in(arguments["message"]):
                _check_sensitive("message", written, draft, report, step)


def _check_operation(draft: SagaDraft, step: StepDraft, operation: OperationDraft, report: Report) -> None:
    _check_arguments(
        operation, operation_scope(draft, operation, step), ExpressionScope(draft, "response", step), report
    )
    if operation.role == "probe":
        over_response = ExpressionScope(draft, "probe", step, over_response=True)
        for field in ("done", "absent", "result"):
            if field in operation.parsed:
                _check_value(operation.parsed.node_of(field), over_response, report, bare=True)


def _check_arguments(
    operation: OperationDraft, scope: ExpressionScope, over_response: ExpressionScope, report: Report
) -> None:
    builtin = BUILTINS.get(operation.operation.uses)
    arguments = operation.arguments
    if arguments is not None and isinstance(arguments.value, dict):
        properties = builtin.parameters["properties"] if builtin else {}
        for name, node in arguments.value.items():
            _check_argument(name, node, properties.get(name), scope, over_response, report)


def _check_argument(
    name: str,
    node: YamlNode,
    schema: Mapping[str, Any] | None,
    scope: ExpressionScope,
    over_response: ExpressionScope,
    report: Report,
) -> None:
    """``schema``: of the argument; None if it is not known."""
    schema = schema or {}
    if isinstance(node.value, dict) and marks_expressions(schema):
        for field, child in node.value.items():
            _check_argument(field, child, schema["properties"].get(field), scope, over_response, report)
        return
    marker = schema.get(EXPRESSION)
    own = over_response if marker == "response" else scope
    _check_value(node, own, report, bare=marker is not None)
    if marker == "response" and is_condition(schema):
        for written in written_in(node, bare=True):
            check_refusal(written.expression, report, written.position)
    if is_condition(schema):
        _check_condition(node, name, own, report)
    if marker is None:
        check_plain_paths(node, scope, report, (schema,) if schema else ())


def _check_value(node: YamlNode, scope: ExpressionScope, report: Report, *, bare: bool = False) -> None:
    for written in written_in(node, report, bare=bare):
        _check_expression(written, scope, report)


def _check_condition(node: YamlNode, field: str, scope: ExpressionScope, report: Report) -> None:
    """Report a condition whose value is certainly neither true nor false."""
    written = list(written_in(node, bare=True))
    kind = infer_type(written[0].expression, scope.type_of) if len(written) == 1 else None
    if kind is not None and kind != "boolean":
        what = TYPE_DESCRIPTIONS.get(kind, kind)
        report.add("SAGA313", node, f"`{field}` needs true or false, and this is {what}")


def _check_items(node: YamlNode, scope: ExpressionScope, report: Report) -> None:
    """Report a `for_each` whose value is certainly not a list."""
    kind = template_type(node, scope) if node.has_expression else None
    if kind is not None and kind != "array":
        what = TYPE_DESCRIPTIONS.get(kind, kind)
        report.add("SAGA306", node, f"`for_each` needs a list, and this is {what}")


def template_type(node: YamlNode, scope: ExpressionScope) -> str | None:
    """The JSON type of a string with expressions; None if it is not certain, or if it does not parse."""
    try:
        parts = split_template(node.value)
        expression = compile_expression(parts[0].text) if parts and parts[0].expression else None
    except ExpressionError:
        return None  # reported where expressions are checked
    return "string" if len(parts) > 1 else infer_type(expression, scope.type_of) if expression else None


def _check_expression(written: Written, scope: ExpressionScope, report: Report) -> None:
    for reference in written.expression.references:
        position = written.position(reference.offset)
        problem = scope.problem(reference.path)
        if problem is not None or (not reference.guarded and (problem := scope.variable_problem(reference.path))):
            help = _hyphen_help(written.expression.source, reference.offset, reference.path[0]) or problem.help
            report.add(problem.code, position, problem.message, help)
    check_missing_values(written.expression, scope, report, written.position)
    for mistake in check_types(written.expression, scope.type_of, scope.element_problem, scope.values_of):
        code, help = _TYPE_MISTAKES[mistake.kind]
        position = written.position(mistake.offset)
        report.add(code, position, mistake.message, mistake.help or help)


_SUBTRACTED = re.compile(r"([A-Za-z_][\w.]*)\.([A-Za-z_]\w*)-\Z")


def _hyphen_help(source: str, offset: int, name: str) -> str | None:
    """The help for `input.order-id`, which subtracts an unknown name; None for other unknown names."""
    before = _SUBTRACTED.search(source[:offset]) if name not in ROOTS else None
    return f'for a field with a hyphen write {before[1]}["{before[2]}-{name}"]' if before else None


def _check_sensitive(
    field: str, written: Written, draft: SagaDraft, report: Report, step: StepDraft | None = None
) -> None:
    for reference in written.expression.references:
        if any(is_sensitive(draft.definition.input, path) for path in _input_paths(reference.path, step)):
            path = ".".join(reference.path)
            what = _PLAIN_TEXT[field]
            position = written.position(reference.offset)
            report.add("SAGA117", position, f"`{path}` is sensitive and cannot be in {what}")


def _input_paths(path: tuple[str, ...], step: StepDraft | None) -> Iterator[tuple[str, ...]]:
    """The input paths that a path leads to: `item` of a `for_each` over a list of the input leads to its elements."""
    if path[0] == "input":
        yield path[1:]
    elif path[0] == "item" and step is not None and "for_each" in step.parsed:
        for written in written_in(step.parsed.node_of("for_each")):
            source = path_of(written.expression.node)
            for reference in written.expression.references:
                if reference.path[0] == "input":
                    yield (*reference.path[1:], ANY_ELEMENT, *path[1:]) if source else reference.path[1:]


def _check_id(node: YamlNode, report: Report) -> None:
    """Report a template whose literal text alone makes every id of it invalid."""
    if not isinstance(node.value, str):
        return  # already reported
    try:
        parts = split_template(node.value)
    except ExpressionError:
        return  # already reported
    problem = saga_id_problem("".join("…" if part.expression else part.text for part in parts))
    if problem is not None:
        report.add("SAGA120", node, problem)


@dataclass(frozen=True, slots=True)
class Written:
    """One expression: the string node that contains it, and the position in the string at which its source begins."""

    expression: Expression
    node: YamlNode
    start: int

    def position(self, offset: int) -> Position:
        """The position in the file of an offset in the source."""
        return self.node.position_at(self.start + offset)


def written_in(node: YamlNode | None, report: Report | None = None, *, bare: bool = False) -> Iterator[Written]:
    """Every expression in a value. ``bare``: also without `${{ }}`. Invalid ones are added to ``report``."""
    value = node.value if node is not None else None
    if node is None:
        return
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from written_in(child, report)
    elif isinstance(value, str) and "${{" in value:
        try:
            parts = split_template(value)
        except ExpressionError as error:
            _refuse(report, node, error, 0)
            return
        if bare and len(parts) > 1:
            if report is not None:
                report.add("SAGA301", node, "one expression is expected here, not a string that contains expressions")
            return
        for part in parts:
            if part.expression:
                yield from _compiled(part.text, part.offset, node, report)
    elif isinstance(value, str) and bare:
        yield from _compiled(value, 0, node, report)


def _compiled(source: str, offset: int, node: YamlNode, report: Report | None) -> Iterator[Written]:
    start = offset + len(source) - len(source.lstrip())
    try:
        yield Written(compile_expression(source), node, start)
    except ExpressionError as error:
        _refuse(report, node, error, start)


def _refuse(report: Report | None, node: YamlNode, error: ExpressionError, start: int) -> None:
    if report is not None:
        report.add("SAGA301", node.position_at(start + max(error.offset, 0)), error.message, error.help)
