"""CEL expressions with exact decimals; evaluation is deterministic, so a replay gives the same values.

compile_expression("sum(steps.reserve.results.map(r, decimal(r.line_total)))").evaluate(context)
compile_value({"key": "order-${{ input.id }}"}).render(context)
"""

from __future__ import annotations

from sagas.expressions.analysis import Reference
from sagas.expressions.errors import ExpressionError
from sagas.expressions.expression import Expression, Template, compile_expression, compile_value
from sagas.expressions.type_checker import ANY_ELEMENT, check_types, infer_type

__all__ = [
    "ANY_ELEMENT",
    "Expression",
    "ExpressionError",
    "Reference",
    "Template",
    "check_types",
    "compile_expression",
    "compile_value",
    "infer_type",
]
