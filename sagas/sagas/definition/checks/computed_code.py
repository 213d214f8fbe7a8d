"""Checks that no value of an input becomes code or a name: expressions in SQL, names and paths of built-in actions.

A name may be computed from a closed list: literals, `enum` and `const` of the input, and `vars`, which the project's
own settings contain. Numbers and booleans are harmless. A part of a path may have any value, because the engine checks
it when the step runs (:func:`sagas.definition.parser.operation_builder.with_checked_paths`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.registry import BUILTINS
from sagas.builtins.schemas import code_kinds, contains_code, element_schemas
from sagas.definition.checks.expressions import Written, operation_scope, written_in
from sagas.definition.checks.scopes import ExpressionScope
from sagas.definition.diagnostics import Report
from sagas.definition.parser.draft import OperationDraft, SagaDraft, StepDraft
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.expressions import nodes
from sagas.expressions.nodes import ExpressionNode, path_of
from sagas.text.shortening import shorten

_HARMLESS_TYPES = ("integer", "number", "boolean")
_SQL_HELP = {
    "query": "write `:name` there, and the value under `params` of this input",
    "where": 'write `where: {column: "${{ … }}"}`; with a `connection` also `:name`, and the value under `params`',
    "filter": 'write `filter: {column: "${{ … }}"}`',
    "expression": "write it as a check `sql`, with `:name` for a value under `params` of the step",
}


def check_computed_code(draft: SagaDraft, report: Report) -> None:
    """Check the arguments of all built-in actions."""
    for step in draft.steps:
        for operation in step.operations:
            _check_operation(draft, operation, step, report)
    for operation in draft.notify:
        _check_operation(draft, operation, None, report)


def _check_operation(draft: SagaDraft, operation: OperationDraft, step: StepDraft | None, report: Report) -> None:
    builtin = BUILTINS.get(operation.operation.uses)
    if builtin is None or operation.arguments is None or operation.operation.uses in draft.project.actions:
        return
    checker = _Checker(operation_scope(draft, operation, step), report)
    checker.check(operation.arguments, (builtin.parameters,), "with")


class _Checker:
    def __init__(self, scope: ExpressionScope, report: Report) -> None:
        self._scope = scope
        self._report = report

    def check(self, node: YamlNode, schemas: tuple[Mapping[str, Any], ...], field: str) -> None:
        """Check a value that is described by one of ``schemas``; ``field`` is its name."""
        value = node.value
        if isinstance(value, dict | list):
            for key, child in value.items() if isinstance(value, dict) else enumerate(value):
                inner = tuple(element_schema for schema in schemas for element_schema in element_schemas(schema, key))
                self.check(child, inner, field if isinstance(key, int) else key)
        elif isinstance(value, str) and "${{" in value:
            kinds = {kind for schema in schemas for kind in code_kinds(schema)}
            if kinds or any(map(contains_code, schemas)):
                self._check_text(node, schemas, kinds, field)

    def _check_text(self, node: YamlNode, schemas: tuple[Mapping[str, Any], ...], kinds: set[Any], field: str) -> None:
        written = list(written_in(node))
        if "sql" in kinds and written:
            help = _SQL_HELP.get(field, "write `:name` there, and the value under `params`")
            self._report.add(
                "SAGA420", _position(written[0]), f"`{field}` is SQL, and an expression in it is code", help
            )
        elif "name" in kinds:
            for place in written:
                if not self._is_listed(place.expression.node):
                    message = f"`{field}` is a name, and `{_shown(place)}` may be any value"
                    self._report.add("SAGA421", _position(place), message)
        elif "path" in kinds:
            for place in written:
                if (
                    place.node.value.lstrip().startswith("${{")
                    and place is written[0]
                    and not self._is_listed(place.expression.node)
                ):
                    message = f"`{field}` begins with `{_shown(place)}`, which may be any path"
                    help = "begin with a literal folder: `data/${{ … }}`"
                    self._report.add("SAGA421", _position(place), message, help)
        else:
            for place in written:
                if not self._fits(place.expression.node, schemas):
                    message = f"`{field}` is computed as a whole, with names or SQL in it that may be any value"
                    self._report.add("SAGA422", _position(place), message)

    def _fits(self, node: ExpressionNode, schemas: tuple[Mapping[str, Any], ...]) -> bool:
        """True if no part of a computed value that is a name may be any value."""
        if not any(map(contains_code, schemas)):
            return True
        kinds = {kind for schema in schemas for kind in code_kinds(schema)}
        match node:
            case nodes.Conditional(then=then, otherwise=otherwise):
                return self._fits(then, schemas) and self._fits(otherwise, schemas)
            case nodes.Default(value=value, fallback=fallback):
                return self._fits(value, schemas) and self._fits(fallback, schemas)
            case nodes.ListLiteral(items=items):
                return all(self._fits(item, _inside(schemas, 0)) for item in items)
            case nodes.MapLiteral(entries=entries):
                return all(
                    isinstance(key, nodes.Constant) and self._fits(value, _inside(schemas, key.value))
                    for key, value in entries
                )
            case nodes.Comprehension(kind="map", body=body):
                return self._fits(body, _inside(schemas, 0))
            case nodes.Comprehension(kind="filter", source=source):
                return self._fits(source, schemas)
            case nodes.Binary(op="+", left=left, right=right) if not kinds:
                return self._fits(left, schemas) and self._fits(right, schemas)
        return self._is_listed(node) and "sql" not in kinds

    def _is_listed(self, node: ExpressionNode) -> bool:
        """True if the value comes from a closed list, or cannot be text at all."""
        match node:
            case nodes.Constant():
                return True
            case nodes.Conditional(then=then, otherwise=otherwise):
                return self._is_listed(then) and self._is_listed(otherwise)
            case nodes.Default(value=value, fallback=fallback):
                return self._is_listed(value) and self._is_listed(fallback)
            case nodes.Binary(op="+", left=left, right=right):
                return self._is_listed(left) and self._is_listed(right)
            case (
                nodes.ListLiteral(items=items)
                | nodes.FunctionCall(args=items, name="string" | "join" | "lower" | "upper")
            ):
                return all(map(self._is_listed, items))
            case nodes.Index(operand=nodes.MapLiteral(entries=entries)):
                return all(self._is_listed(value) for _, value in entries)
            case nodes.Index(operand=nodes.ListLiteral() as operand):
                return self._is_listed(operand)
        path = path_of(node)
        return path is not None and self._is_listed_path(path)

    def _is_listed_path(self, path: tuple[str, ...]) -> bool:
        if path[0] in ("vars", "index") or path == ("saga", "name"):
            return True
        if path[0] not in ("input", "item"):
            return False
        schema = self._scope.schema_of(path)
        listed = isinstance(schema, Mapping) and ("enum" in schema or "const" in schema)
        return listed or self._scope.type_of(path) in _HARMLESS_TYPES


def _inside(schemas: tuple[Mapping[str, Any], ...], key: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple(element_schema for schema in schemas for element_schema in element_schemas(schema, key))


def _position(written: Written) -> Any:
    return written.node.position_at(written.start)


def _shown(written: Written) -> str:
    return shorten(" ".join(written.expression.source.split()), 40)
