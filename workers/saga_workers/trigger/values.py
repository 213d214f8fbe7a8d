"""The expressions of a trigger, compiled once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from saga_workers.trigger.trying import Poison
from sagas.definition.model import KafkaTrigger
from sagas.expressions import ExpressionError, compile_value

_Render = Callable[[Mapping[str, Any]], Any]
_PATH = re.compile(r"\s*\$\{\{\s*(trigger(?:\.[A-Za-z_]\w*)*)\s*\}\}\s*")


class Values:
    """What a trigger makes of an event. Every method raises Poison when an expression fails on it."""

    def __init__(self, trigger: KafkaTrigger) -> None:
        self._id = None if trigger.id is None else compile_value(trigger.id).render
        self._input = _compiled(trigger.input)
        self._filter = None if trigger.filter is None else compile_value(trigger.filter).render

    def wanted(self, context: Mapping[str, Any]) -> bool:
        """False: the filter leaves this event out."""
        if self._filter is None:
            return True
        value = _evaluated("filter", self._filter, context)
        if not isinstance(value, bool):
            raise Poison("`filter` is neither true nor false for this event")
        return value

    def id(self, context: Mapping[str, Any]) -> str | None:
        """The saga's id; None where the trigger has no template."""
        if self._id is None:
            return None
        value = _evaluated("id", self._id, context)
        if not isinstance(value, str) or not value.strip():
            raise Poison("`id` is no text, or an empty one, for this event")
        return value

    def input(self, context: Mapping[str, Any]) -> Any:
        return _evaluated("input", self._input, context)


def _evaluated(field: str, render: _Render, context: Mapping[str, Any]) -> Any:
    try:
        return render(context)
    except ExpressionError as error:
        raise Poison(f"`{field}` cannot be made from this event: {error.message}") from None


def _compiled(value: Any) -> _Render:
    """As :func:`compile_value`, but a part of the event that is only passed on stays exactly as it is.

    An expression makes exact decimals of numbers with a fraction, and those leave it as texts.
    """
    if isinstance(value, str):
        path = _PATH.fullmatch(value)
        render = compile_value(value).render
        return _passed_on(path.group(1).split("."), render) if path else render
    if isinstance(value, Mapping):
        fields = {key: _compiled(item) for key, item in value.items()}
        return lambda context: {key: render(context) for key, render in fields.items()}
    if isinstance(value, list | tuple):
        items = [_compiled(item) for item in value]
        return lambda context: [render(context) for render in items]
    return lambda _: value


def _passed_on(path: list[str], otherwise: _Render) -> _Render:
    def render(context: Mapping[str, Any]) -> Any:
        found: Any = context
        for name in path:
            if not isinstance(found, Mapping) or name not in found:
                return otherwise(context)  # which says what is wrong
            found = found[name]
        return found

    return render
