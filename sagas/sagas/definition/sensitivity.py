"""Finds and masks the `x-sensitive` values of an input. Every schema that the validator may apply to a value counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sagas.definition.schema_nodes import (
    SchemaNode,
    all_inside,
    closure,
    dynamic_anchors,
    dynamic_targets,
    elements,
    inside,
    leading_to,
    reachable,
    root_node,
    same_value,
)
from sagas.expressions import ANY_ELEMENT
from sagas.text.exact_json import canonical_json, decode_json, value_text
from sagas.text.masked_texts import QUOTED, TextMask
from sagas.text.printable import MASK

SENSITIVE_KEYWORD = "x-sensitive"


def is_sensitive(schema: Any, path: tuple[str, ...]) -> bool:
    """True if the value at ``path``, a value that contains it, or a value inside it is `x-sensitive`.

    All parts of `anyOf`, `if`, `not` and the like count, because any of them may apply.
    """
    return _sensitivity(schema).covers(path)


def has_sensitive_values(schema: Any) -> bool:
    """True if the schema marks any value."""
    return not isinstance(_sensitivity(schema), _Nothing)


def masked(schema: Any, value: Any) -> Any:
    """The value for people to read: with `•••` in place of what is `x-sensitive`."""
    return _sensitivity(schema).mask(value)


_MIN_MASKED = 3
"""Characters of the shortest value that is looked for in messages: `1` or `DE` may stand there for anything."""


@lru_cache(maxsize=16)
def searched_texts(sensitive: frozenset[str]) -> tuple[str, ...]:
    """The texts in which messages may quote :func:`sensitive_values`, the longest first."""
    texts = {text for text in sensitive if len(text) >= _MIN_MASKED}
    return tuple(sorted(texts | {text[:QUOTED] for text in texts}, key=lambda text: (-len(text), text)))


def _sensitive_scalars(value: Any, shown: Any, declared: frozenset[str]) -> Iterator[str]:
    """The texts of the scalars, and of names that the schema does not declare, that are not in ``shown``, the masked
    value.
    """
    if shown is value:
        return  # nothing is masked inside it
    match value:
        case dict():
            for name, item in value.items():
                if shown == MASK and name not in declared:
                    yield str(name)
                yield from _sensitive_scalars(item, shown[name] if isinstance(shown, dict) else MASK, declared)
        case list():
            for index, item in enumerate(value):
                yield from _sensitive_scalars(item, shown[index] if isinstance(shown, list) else MASK, declared)
        case str() | int() | Decimal() if shown == MASK and not isinstance(value, bool):
            yield value_text(value)
            if isinstance(value, Decimal):
                yield value_text(value.normalize())


def sensitive_values(schema: Any, value: Any) -> frozenset[str]:
    """The `x-sensitive` values inside ``value`` as texts, however short."""
    sensitivity = _sensitivity(schema)
    return frozenset(_sensitive_scalars(value, sensitivity.mask(value), sensitivity.declared))


class SensitiveMask(TextMask):
    """Masks sensitive values in what people read."""

    def __init__(self, sensitive: frozenset[str]) -> None:
        super().__init__(searched_texts(sensitive))
        self._sensitive = sensitive

    def text(self, text: str) -> str:
        """The text, with `•••` in place of sensitive values."""
        return MASK if text in self._sensitive else super().text(text)

    def value(self, value: Any) -> Any:
        """The JSON value, with `•••` in place of sensitive values and inside texts and names that contain them."""
        if not self._sensitive:
            return value
        match value:
            case str():
                return self.text(value)
            case int() | Decimal() if not isinstance(value, bool):
                return MASK if self._masks_number(value) else value
            case dict():
                return {self.text(name): self.value(item) for name, item in value.items()}
            case list() | tuple():
                return [self.value(item) for item in value]
        return value

    def _masks_number(self, value: int | Decimal) -> bool:
        if value_text(value) in self._sensitive:
            return True
        return isinstance(value, Decimal) and value_text(value.normalize()) in self._sensitive


def without_values(value: Any, sensitive: frozenset[str]) -> Any:
    """``value`` for people to read, see :class:`SensitiveMask`."""
    return SensitiveMask(sensitive).value(value)


def has_sensitive_names(schema: Any, path: tuple[str, ...]) -> bool:
    """True if the names in the object at ``path`` are content that a message must not quote."""
    return _sensitivity(schema).covers_names(path)


class _Sensitivity:
    def __init__(self, schema: Any) -> None:
        self._root = root_node(schema)
        self._dynamic = dynamic_anchors(self._root)
        self._leading = leading_to(self._root, _is_marked)
        """The ids of the schemas that are marked, or lead to one that is: in the others nothing is masked."""
        self.declared = frozenset(_declared_names(schema))
        """The names of properties, which are no data."""

    def covers(self, path: tuple[str, ...]) -> bool:
        described = list(self._describing(path))
        if any(_is_marked(node) for node, _ in described):
            return True
        ends = [node for node, below in described if not below]
        return any(_is_marked(node) for node in reachable(ends, self._dynamic))

    def covers_names(self, path: tuple[str, ...]) -> bool:
        described = list(self._describing(path))
        names = [part for node, below in described if not below and (part := node.part("propertyNames")) is not None]
        return any(_is_marked(node) for node, _ in described) or any(
            _is_marked(node) for node in reachable(names, self._dynamic)
        )

    def mask(self, value: Any) -> Any:
        return self._mask([self._root], value)

    def _mask(self, nodes: list[SchemaNode], value: Any) -> Any:
        """``value`` itself if nothing is masked in it."""
        nodes = [node for node in nodes if id(node.schema) in self._leading]
        if not nodes:
            return value
        described = self._same_value(nodes)
        names = [part for node in described if (part := node.part("propertyNames")) is not None]
        marked = [*described, *(self._same_value(names) if isinstance(value, dict) else ())]
        if any(map(_is_marked, marked)):
            return MASK
        if isinstance(value, dict):
            return {
                name: self._mask([part for node in described for part in inside(node, name)], item)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [
                self._mask([part for node in described for part in elements(node, index)], item)
                for index, item in enumerate(value)
            ]
        return value

    def _same_value(self, nodes: list[SchemaNode]) -> list[SchemaNode]:
        return list(closure(nodes, lambda node: (*same_value(node), *dynamic_targets(node, self._dynamic))))

    def _describing(self, path: tuple[str, ...]) -> Iterator[tuple[SchemaNode, tuple[str, ...]]]:
        """Every schema that may describe the value at ``path`` or one that contains it, with the rest of the path."""
        described = self._same_value([self._root])
        yield from ((node, path) for node in described)
        for depth, name in enumerate(path, start=1):
            described = self._same_value([part for node in described for part in _inside(node, name)])
            yield from ((node, path[depth:]) for node in described)


def _inside(node: SchemaNode, name: str) -> Iterator[SchemaNode]:
    """An element may also be a property whose name is only computed."""
    return all_inside(node) if name == ANY_ELEMENT else inside(node, name)


def _declared_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(properties := schema.get("properties"), Mapping):
            yield from properties
        for part in schema.values():
            yield from _declared_names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _declared_names(part)


def _is_marked(node: SchemaNode) -> bool:
    return node.get(SENSITIVE_KEYWORD) is True


class _Nothing(_Sensitivity):
    def __init__(self) -> None:
        self.declared = frozenset()

    def covers(self, path: tuple[str, ...]) -> bool:
        return False

    def covers_names(self, path: tuple[str, ...]) -> bool:
        return False

    def mask(self, value: Any) -> Any:
        return value


def _sensitivity(schema: Any) -> _Sensitivity:
    if not isinstance(schema, Mapping):
        return _Nothing()
    return _of_text(canonical_json(schema))


@lru_cache(maxsize=64)
def _of_text(canonical: str) -> _Sensitivity:
    return _Sensitivity(decode_json(canonical)) if f'"{SENSITIVE_KEYWORD}"' in canonical else _Nothing()
