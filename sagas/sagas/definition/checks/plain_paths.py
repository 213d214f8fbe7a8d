"""Warns of paths that are stored as text, because they are not in `${{ }}`: `input.customer`, `{{ input.customer }}`.

Only what could be an expression at its place is reported: a declared field of the input, a step, a variable, an item.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sagas.builtins.schemas import code_kinds, element_schemas
from sagas.definition.checks.scopes import ExpressionScope
from sagas.definition.diagnostics import Report
from sagas.definition.parser.yaml_nodes import YamlNode
from sagas.expressions import ExpressionError, compile_expression

_PATH = r"(?:input|steps|vars|item)(?:\.[A-Za-z_]\w*|\[\d+\]|\[\"[^\"\]]+\"\])+"
_WHOLE = re.compile(rf"\s*({_PATH})\s*")
_BRACED = re.compile(rf"(?<![$\{{])\{{\{{\s*({_PATH})\s*\}}\}}|\$\{{\s*({_PATH})\s*\}}")


def check_plain_paths(
    node: YamlNode, scope: ExpressionScope, report: Report, schemas: tuple[Mapping[str, Any], ...] = ()
) -> None:
    """Check all strings in a value; ``schemas`` describe it, because a name of a table may look like a path."""
    value = node.value
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            inner = tuple(element_schema for schema in schemas for element_schema in element_schemas(schema, key))
            check_plain_paths(child, scope, report, inner)
    elif isinstance(value, str) and not any(map(code_kinds, schemas)):
        whole = _WHOLE.fullmatch(value)
        for match in [whole] if whole else _BRACED.finditer(value):
            path = next(group for group in match.groups() if group)
            if _is_value(path, scope, declared=whole is not None):
                written = match[0].strip()
                message = f"`{written}` is text, not the value of `{path}`"
                report.add(
                    "SAGA311", node.position_at(match.start()), message, f"write `{'${{ ' + path + ' }}'}` in quotes"
                )


def _is_value(path: str, scope: ExpressionScope, *, declared: bool) -> bool:
    """True if the path is the name of a value here. ``declared``: only if the schema or the project has its name."""
    try:
        references = compile_expression(path).references
    except ExpressionError:
        return False
    for reference in references:
        root = reference.path[0]
        if scope.problem(reference.path) is not None or scope.variable_problem(reference.path) is not None:
            return False
        if root == "steps" and len(reference.path) < 3:
            return False
        if declared and root == "input" and scope.schema_of(reference.path[:2]) is None:
            return False
        if declared and root == "vars" and scope.draft.project.vars is None:
            return False
    return bool(references)
