"""JSON values in whose strings ``${{ … }}`` may stand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.expressions.errors import ExpressionError
from sagas.expressions.expression import Expression, compile_expression
from sagas.expressions.limits import NESTING, checked_length
from sagas.expressions.scanner import OPEN, scan

Path = tuple[str | int, ...]
_Render = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Template:
    """A value compiled by :func:`compile_value`.

    ``expressions`` are all expressions with the place in the value where each stands, in the order of the value.
    """

    expressions: tuple[tuple[Path, Expression], ...]
    _render: _Render = field(repr=False, compare=False)

    @property
    def constant(self) -> bool:
        """No expression in it: :meth:`render` returns the value itself, not a copy."""
        return not self.expressions

    def render(self, context: Mapping[str, Any]) -> Any:
        """The value with every expression evaluated; raises ExpressionError."""
        return self._render(context)


def compile_value(value: Any) -> Template:
    """Compile every expression in a JSON value; raises ExpressionError that names the place in the value.

    A string that is one expression keeps the type of its result; inside a longer string the result is formatted:
    decimals plain, booleans ``true`` and ``false``, lists and maps as JSON with sorted keys; null is an error.
    Map keys are taken as they are.
    """
    found: list[tuple[Path, Expression]] = []
    render = _compile(value, (), found)
    return Template(tuple(found), render or (lambda context: value))


def _compile(value: Any, path: Path, found: list[tuple[Path, Expression]]) -> _Render | None:
    """How to render a value; None when it is its own result."""
    if len(path) > NESTING:
        raise ExpressionError(f"a value of more than {NESTING} levels inside each other is refused", 0)
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


def _string(value: str, path: Path, found: list[tuple[Path, Expression]]) -> _Render:
    try:
        parts = [compile_expression(part.text) if part.expression else part.text for part in scan(value)]
    except ExpressionError as error:
        raise type(error)(_at(path) + error.message, error.offset) from None
    found.extend((path, part) for part in parts if isinstance(part, Expression))
    if len(parts) == 1:
        only = parts[0]
        return only.evaluate if isinstance(only, Expression) else _always(only)
    return lambda context: _joined(parts, context)


def _at(path: Path) -> str:
    return ".".join(map(str, path)) + ": " if path else ""


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
