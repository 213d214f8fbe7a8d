"""Events as the sagas see them that they start: with the integers of the schema of the input.

Where that says `integer`, an event with 14.0 and one with 14 mean the same saga, so the `id` of the trigger has to be
the same text for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sagas.expressions import compile_expression
from sagas.expressions.nodes import path_of
from sagas.expressions.template_syntax import split_template

_VALUE = ("trigger", "value")
_Path = tuple[str | int, ...]

PassedOn = tuple[_Path, _Path]
"""A part of the event that the input has as it came: its path in the input, and that in ``trigger.value``."""


def parts_passed_on(template: Any, place: _Path = ()) -> Iterator[PassedOn]:
    """Every part of ``trigger.value`` that the `input` of a trigger takes unchanged. Its expressions are valid."""
    if isinstance(template, Mapping | list):
        for name, part in template.items() if isinstance(template, Mapping) else enumerate(template):
            yield from parts_passed_on(part, (*place, name))
    elif isinstance(template, str):
        parts = split_template(template)
        path = path_of(compile_expression(parts[0].text).node) if len(parts) == 1 and parts[0].expression else None
        if path is not None and path[: len(_VALUE)] == _VALUE:
            yield place, path[len(_VALUE) :]


def with_normalised_value(context: Mapping[str, Any], passed_on: Sequence[PassedOn], input: Any) -> Mapping[str, Any]:
    """The context of a trigger's expressions, where ``trigger.value`` has these parts as they are in the ``input``,
    which has been checked against the schema of the saga and completed by it.
    """
    value = context["trigger"]["value"]
    for place, path in passed_on:
        part = input
        for name in place:
            part = part[name]
        value = _replaced(value, path, part)
    return {**context, "trigger": {**context["trigger"], "value": value}}


def _replaced(value: Any, path: _Path, part: Any) -> Any:
    if not path:
        return part
    if not isinstance(value, Mapping) or path[0] not in value:
        return value
    return {**value, path[0]: _replaced(value[path[0]], path[1:], part)}
