"""JSON values in whose strings ``${{ … }}`` may stand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.expressions.errors import ExpressionError
from sagas.expressions.expression import Expression, compile_expression
from sagas.expressions.limits import DATA_DEPTH, checked_length
from sagas.expressions.scanner import OPEN, scan

Path = tuple[str | int, ...]
_Found = tuple[Path, Expression, int]
_Render = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Template:
    """A value compiled by :func:`compile_value`.

    ``expressions`` are all expressions with the place in the value where each stands, in the order of the value.
    ``offsets`` says for each where its source begins in its string.
    """

    expressions: tuple[tuple[Path, Expression], ...]
    offsets: tuple[int, ...]
    _render: _Render = field(repr=False, compare=False)

    @property
    def constant(self) -> bool:
        """No expression in it: :meth:`render` returns the value itself, not a copy."""
        return not self.expressions

    def render(self, context: Mapping[str, Any]) -> Any:
        """The value with every expression evaluated; raises ExpressionError."""
        return self._render(context)


def compile_value(value: Any) -> Template:
    """Compile every expression in a JSON value; raises ExpressionError whose ``path`` and ``offset`` say where.

    A string that is one expression keeps the type of its result; inside a longer string the result is formatted:
    decimals plain, booleans ``true`` and ``false``, lists and maps as JSON with sorted keys; null is an error.
    Map keys are taken as they are.
    """
    found: list[_Found] = []
    render = _compile(value, (), found)
    expressions = tuple((path, expression) for path, expression, _ in found)
    return Template(expressions, tuple(offset for *_, offset in found), render or _always(value))


def _compile(value: Any, path: Path, found: list[_Found]) -> _Render | None:
    """How to render a value; None when it is its own result."""
    if len(path) > DATA_DEPTH:
        raise ExpressionError(f"a value of more than {DATA_DEPTH} levels inside each other is refused", 0)
    if isinstance(value, str):
        return _string(value, path, found) if OPEN in value else None
    if isinstance(value, Mapping):
        fields = {key: _compile(item, (*path, str(key)), found) for key, item in value.items()}
        if not any(fields.values()):
            return None
        pairs = [(key, render or _always(value[key])) for key, render in fields.items()]
        return lambda context: {key: render(context) for key, render in pairs}
    if isinstance(value, list | tuple):
        items = [_compile(item, (*path, at), found) for at, item in enumerate(value)]
        if not any(items):
            return None
        renders = [render or _always(item) for render, item in zip(items, value, strict=True)]
        return lambda context: [render(context) for render in renders]
    return None


def _always(value: Any) -> _Render:
    return lambda context: value


def _string(value: str, path: Path, found: list[_Found]) -> _Render:
    parts: list[str | Expression] = []
    start = 0
    try:
        for part in scan(value):
            if not part.expression:
                parts.append(part.text)
                continue
            start = part.offset + len(part.text) - len(part.text.lstrip())
            expression = compile_expression(part.text)
            parts.append(expression)
            found.append((path, expression, start))
    except ExpressionError as error:
        error.path, error.offset = path, start + error.offset
        raise
    if len(parts) == 1:
        only = parts[0]
        return only.evaluate if isinstance(only, Expression) else _always(only)
    return lambda context: _joined(parts, context)


def _joined(parts: list[str | Expression], context: Mapping[str, Any]) -> str:
    texts = [part if isinstance(part, str) else _formatted(part, context) for part in parts]
    checked_length(sum(map(len, texts)))
    return "".join(texts)


def _formatted(expression: Expression, context: Mapping[str, Any]) -> str:
    value = expression.evaluate(context)
    if isinstance(value, str):
        return value
    if value is None:
        raise ExpressionError(f"{expression.source} is null and cannot stand inside text; write default(…, '')", 0)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
