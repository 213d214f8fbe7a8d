"""The expressions in a written value, each with its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sagas.definition.diagnostics import Report
from sagas.definition.source import Node
from sagas.expressions import Expression, ExpressionError, compile_expression
from sagas.expressions.scanner import scan


@dataclass(frozen=True, slots=True)
class Written:
    """One expression: the text that holds it, and where in it the source begins."""

    expression: Expression
    node: Node
    start: int


def written_in(node: Node | None, report: Report | None = None, *, bare: bool = False) -> Iterator[Written]:
    """Every expression in a value. ``bare``: without `${{ }}`. Those that do not parse go to ``report``."""
    value = node.value if node is not None else None
    if node is None:
        return
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from written_in(child, report)
    elif isinstance(value, str) and "${{" in value:
        try:
            parts = scan(value)
        except ExpressionError as error:
            _refuse(report, node, error, 0)
            return
        if bare and len(parts) > 1:
            if report is not None:
                report.add("SAGA301", node, "one expression is expected here, not a text with expressions in it")
            return
        for part in parts:
            if part.expression:
                yield from _compiled(part.text, part.offset, node, report)
    elif isinstance(value, str) and bare:
        yield from _compiled(value, 0, node, report)


def _compiled(source: str, offset: int, node: Node, report: Report | None) -> Iterator[Written]:
    start = offset + len(source) - len(source.lstrip())
    try:
        yield Written(compile_expression(source), node, start)
    except ExpressionError as error:
        _refuse(report, node, error, start)


def _refuse(report: Report | None, node: Node, error: ExpressionError, start: int) -> None:
    if report is not None:
        report.add("SAGA301", node.at(start + max(error.offset, 0)), error.message, error.help)
