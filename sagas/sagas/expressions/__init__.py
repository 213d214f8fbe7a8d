"""Expressions: CEL with exact decimals, evaluated the same on every replay.

compile_expression("sum(steps.reserve.results.map(r, decimal(r.line_total)))").evaluate(context)
compile_value({"key": "order-${{ input.id }}"}).render(context)
"""

from __future__ import annotations

from sagas.expressions.errors import ExpressionError
from sagas.expressions.expression import Expression, compile_expression
from sagas.expressions.references import Reference
from sagas.expressions.template import Template, compile_value
from sagas.expressions.types import ELEMENT, check_types, infer_kind

__all__ = [
    "ELEMENT",
    "Expression",
    "ExpressionError",
    "Reference",
    "Template",
    "check_types",
    "compile_expression",
    "compile_value",
    "infer_kind",
]
