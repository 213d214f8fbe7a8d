"""Compiled expressions, and templates: JSON values whose strings may contain ``${{ … }}``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import DecimalException
from functools import lru_cache
from typing import Any

from sagas.expressions.analysis import Reference, find_references
from sagas.expressions.compiler import Compiler
from sagas.expressions.errors import ExpressionError, LimitError
from sagas.expressions.limits import (
    MAX_DATA_DEPTH,
    MAX_STEPS,
    MAX_VALUE_STEPS,
    WORK_PER_STEP,
    Evaluation,
    WorkMeter,
    check_string_length,
)
from sagas.expressions.nodes import ExpressionNode
from sagas.expressions.parser import parse_expression
from sagas.expressions.template_syntax import OPENING, split_template
from sagas.expressions.values import from_cel
from sagas.expressions.work_budget import TooComplex, current_budget
from sagas.text.exact_json import value_text
from sagas.text.shortening import shorten


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression; immutable, and cached by source.

    ``source`` excludes ``${{ }}`` and surrounding whitespace; all offsets count its characters. ``node`` is the syntax
    tree.
    """

    source: str
    references: tuple[Reference, ...]
    node: ExpressionNode = field(repr=False, compare=False)
    _code: Callable[[Evaluation], Any] = field(repr=False, compare=False)
    _slots: int = field(repr=False, compare=False)

    def evaluate(self, context: Mapping[str, Any], meter: WorkMeter | None = None) -> Any:
        """The result in this context as JSON: numbers are integers and decimals with the digits they had.

        A pure function of source and context: no clock, no randomness, no environment. Raises ExpressionError if a
        part cannot be evaluated, and LimitError if the work or the result is too large. ``meter`` counts the work.
        Within :func:`bounded` the work is also that on the input, and TooComplex is raised when this is too much.
        """
        meter = meter or WorkMeter()
        budget = current_budget()
        most = MAX_VALUE_STEPS if budget is None else min(MAX_VALUE_STEPS, max(budget.remaining, 0))
        limit = min(MAX_STEPS, most)
        run = Evaluation(context, self._slots, limit)
        try:
            meter.check()
            result = from_cel(run, self._code(run), min(meter.steps_left, most), meter)
            run.charge_work(0)  # steps alone do not notice the work that came before them
            return result
        except LimitError:
            if budget is not None and most < MAX_VALUE_STEPS:
                budget.give_up()
                raise TooComplex from None
            raise
        except ExpressionError as error:
            error.offset = max(error.offset, 0)
            raise
        except DecimalException:
            raise ExpressionError(
                f"`{shorten(self.source)}` results in a decimal that is not a finite number", 0
            ) from None
        finally:
            steps = limit - max(run.steps_left, 0)
            meter.steps += steps
            meter.work += run.work
            if budget is not None and not budget.is_spent:
                budget.charge(steps + run.work // WORK_PER_STEP)

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        return compile_expression, (self.source,)


def compile_expression(source: str) -> Expression:
    """Compile CEL source, bare or in ``${{ }}``; raises ExpressionError with message and offset."""
    return _compile_source(_without_braces(source))


def _without_braces(source: str) -> str:
    text = source.strip()
    if text.startswith(OPENING):
        parts = split_template(text)
        if len(parts) != 1:
            raise ExpressionError("this is text around an expression; write an expression alone", 0)
        return parts[0].text.strip()
    return text


@lru_cache(maxsize=4096)
def _compile_source(source: str) -> Expression:
    node = parse_expression(source)
    compiler = Compiler(source)
    code = compiler.compile(node)
    return Expression(source, find_references(node), node, code, compiler.slots)


ValuePath = tuple[str | int, ...]
_Occurrence = tuple[ValuePath, Expression, int]
_Render = Callable[[Mapping[str, Any], WorkMeter], Any]


@dataclass(frozen=True, slots=True)
class Template:
    """A value compiled by :func:`compile_value`.

    ``expressions`` lists all expressions with their paths in the value, in document order. ``offsets`` has for each of
    them the position in its string at which the source begins.
    """

    expressions: tuple[tuple[ValuePath, Expression], ...]
    offsets: tuple[int, ...]
    _render: _Render = field(repr=False, compare=False)

    def render(self, context: Mapping[str, Any], meter: WorkMeter | None = None) -> Any:
        """The value with every expression evaluated: the value itself, not a copy, if it has none.

        Raises ExpressionError. ``meter`` counts the work.
        """
        meter = meter or WorkMeter()
        meter.begin_value()
        return self._render(context, meter)


def compile_value(value: Any) -> Template:
    """Compile every expression in a JSON value; raises ExpressionError with the ``path`` and ``offset`` of the error.

    A string that is a single expression keeps the type of its result. Inside a longer string the result is formatted:
    numbers with their digits and without exponent, booleans ``true`` and ``false``, lists and maps as JSON with sorted
    keys; null is an error. Map keys are never evaluated.
    """
    occurrences: list[_Occurrence] = []
    render = _compile_node(value, (), occurrences)
    expressions = tuple((path, expression) for path, expression, _ in occurrences)
    return Template(expressions, tuple(offset for *_, offset in occurrences), render or _constant(value))


def _compile_node(value: Any, path: ValuePath, occurrences: list[_Occurrence]) -> _Render | None:
    """The function that renders a value; None if the value has no expressions."""
    if len(path) > MAX_DATA_DEPTH:
        raise ExpressionError(f"a value nested deeper than {MAX_DATA_DEPTH} levels is refused", 0)
    if isinstance(value, str):
        return _compile_string(value, path, occurrences) if OPENING in value else None
    if isinstance(value, Mapping):
        fields = {key: _compile_node(item, (*path, str(key)), occurrences) for key, item in value.items()}
        if not any(fields.values()):
            return None
        pairs = [(key, render or _constant(value[key])) for key, render in fields.items()]
        return lambda context, meter: {key: render(context, meter) for key, render in pairs}
    if isinstance(value, list | tuple):
        items = [_compile_node(item, (*path, index), occurrences) for index, item in enumerate(value)]
        if not any(items):
            return None
        renders = [render or _constant(item) for render, item in zip(items, value, strict=True)]
        return lambda context, meter: [render(context, meter) for render in renders]
    return None


def _constant(value: Any) -> _Render:
    return lambda context, meter: value


def _compile_string(value: str, path: ValuePath, occurrences: list[_Occurrence]) -> _Render:
    parts: list[str | Expression] = []
    start = 0
    try:
        for part in split_template(value):
            if not part.expression:
                parts.append(part.text)
                continue
            start = part.offset + len(part.text) - len(part.text.lstrip())
            expression = compile_expression(part.text)
            parts.append(expression)
            occurrences.append((path, expression, start))
    except ExpressionError as error:
        error.path, error.offset = path, start + error.offset
        raise
    if len(parts) == 1 and not isinstance(parts[0], Expression):
        return _constant(parts[0])

    def render(context: Mapping[str, Any], meter: WorkMeter) -> Any:
        try:
            if len(parts) == 1 and isinstance(only := parts[0], Expression):
                return only.evaluate(context, meter)
            return _join(parts, context, meter)
        except ExpressionError as error:
            error.path, error.text = path, value
            raise

    return render


def _join(parts: list[str | Expression], context: Mapping[str, Any], meter: WorkMeter) -> str:
    texts = [part if isinstance(part, str) else _format_in_string(part, context, meter) for part in parts]
    check_string_length(sum(map(len, texts)))
    return "".join(texts)


def _format_in_string(expression: Expression, context: Mapping[str, Any], meter: WorkMeter) -> str:
    value = expression.evaluate(context, meter)
    if value is None:
        raise ExpressionError(f"{expression.source} is null and cannot be part of a string; write default(…, '')", 0)
    return value_text(value)
