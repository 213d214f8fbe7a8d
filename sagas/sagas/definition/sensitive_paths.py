"""Sensitive values that a saga hands to a nested one: by the places in the input of that one, never by the values.

A nested saga need not know that its input is sensitive: the schema of its parent says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.definition.sensitivity import SENSITIVE_KEYWORD, SensitiveMask

SensitivePath = tuple[str | None, ...]
"""Names of properties; None stands for every element of a list."""

MAX_PATHS = 50
_MAX_PATH_CHARACTERS = 2000
"""Beyond it, and beyond :data:`MAX_PATHS`, the whole input is sensitive: a memo is small."""

WHOLE_INPUT: tuple[SensitivePath, ...] = ((),)


def sensitive_paths(value: Any, sensitive: frozenset[str]) -> tuple[SensitivePath, ...]:
    """The places inside ``value`` that have one of these values, as a whole or as a part of a text."""
    if not sensitive:
        return ()
    paths: set[SensitivePath] = set()
    size = 0
    for path in _places(value, SensitiveMask(sensitive), ()):
        if path in paths:
            continue
        paths.add(path)
        size += sum(len(name or "") for name in path)
        if len(paths) > MAX_PATHS or size > _MAX_PATH_CHARACTERS:
            return WHOLE_INPUT
    return tuple(sorted(paths, key=lambda path: [name or "" for name in path]))


def _places(value: Any, mask: SensitiveMask, path: SensitivePath) -> Iterator[SensitivePath]:
    if isinstance(value, Mapping):
        # The author of the definition has written the names of the input itself, where `name` may be no data.
        if path and any(mask.text(name) != name for name in value):
            yield path
            return
        for name, item in value.items():
            yield from _places(item, mask, (*path, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _places(item, mask, (*path, None))
    elif mask.value(value) != value:
        yield path


def with_sensitive_paths(schema: Any, paths: tuple[SensitivePath, ...]) -> Mapping[str, Any]:
    """The schema of an input with these places marked as well. It accepts the same inputs."""
    marks = [_mark(path) for path in paths]
    if not isinstance(schema, Mapping):
        return {"allOf": marks}
    own = schema.get("allOf")
    return {**schema, "allOf": [*(own if isinstance(own, list) else []), *marks]}


def _mark(path: SensitivePath) -> dict[str, Any]:
    marked: dict[str, Any] = {SENSITIVE_KEYWORD: True}
    for name in reversed(path):
        marked = {"items": marked} if name is None else {"properties": {name: marked}}
    return marked


def read_sensitive_paths(value: Any) -> tuple[SensitivePath, ...]:
    """The places that a memo names. Raises TypeError or ValueError if it names something else, or too many."""
    if not isinstance(value, list) or len(value) > MAX_PATHS:
        raise ValueError(value)
    for path in value:
        if not isinstance(path, list) or not all(name is None or isinstance(name, str) for name in path):
            raise TypeError(path)
    return tuple(tuple(path) for path in value)
