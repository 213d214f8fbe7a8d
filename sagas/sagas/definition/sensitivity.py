"""Finds and masks the `x-sensitive` values of an input. Every schema that the validator may apply to a value counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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
from sagas.input_limits import MAX_INTEGER_DIGITS
from sagas.text.exact_json import canonical_json, decode_json, value_text
from sagas.text.masked_texts import TextMask, mask_texts
from sagas.text.printable import MASK
from sagas.text.text_search import QUOTED

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


_MIN_IN_ID = 5
"""Characters of the shortest value that is looked for inside an id: a shorter one may stand there by chance, as a group
of four characters of a UUID does."""


_MAX_PLAIN = 100
"""Characters of the longest number that is written without an exponent: 249,000 times `1e999` are a second of CPU, and
249,000 such numbers 250 MB."""


@lru_cache(maxsize=16)
def searched_texts(sensitive: frozenset[str]) -> tuple[str, ...]:
    """The texts in which messages may quote :func:`sensitive_values`, the longest first."""
    texts = {text for text in sensitive if len(text) >= _MIN_MASKED}
    texts.update([text[:QUOTED] for text in texts if len(text) > QUOTED])
    return tuple(sorted(sorted(texts), key=len, reverse=True))


def _add_sensitive(texts: set[str], value: Any, shown: Any, declared: frozenset[str]) -> None:
    """Add the texts of the scalars, and of names that the schema does not declare, that are not in ``shown``, the
    masked value.
    """
    if shown is value:
        return  # nothing is masked inside it
    if isinstance(value, dict):
        if shown == MASK:
            texts.update([name for name in value if name not in declared])
        for name, item in value.items():
            _add_sensitive(texts, item, shown[name] if isinstance(shown, dict) else MASK, declared)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _add_sensitive(texts, item, shown[index] if isinstance(shown, list) else MASK, declared)
    elif shown == MASK:
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, Decimal):
            texts.update(_decimal_texts(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            texts.add(value_text(value))


def _decimal_texts(number: Decimal) -> tuple[str, ...]:
    """The forms of the number in texts; of one with many zeros that with an exponent, and the first digits."""
    short = number.normalize()
    if abs(short.adjusted()) < _MAX_PLAIN:
        return value_text(number), value_text(short)
    digits = str(short).partition("E")[0].replace(".", "")
    written = len(digits) > _MAX_PLAIN
    if written:
        return value_text(number), value_text(short), str(short)
    return (str(short), digits.ljust(QUOTED, "0")[:QUOTED]) if short.adjusted() > 0 else (str(short),)


def sensitive_values(schema: Any, value: Any) -> frozenset[str]:
    """The `x-sensitive` values inside ``value`` as texts, however short. An empty text is nobody's secret: it stands in
    many places by itself.
    """
    sensitivity = _sensitivity(schema)
    texts: set[str] = set()
    _add_sensitive(texts, value, sensitivity.mask(value), sensitivity.declared)
    return frozenset(texts - {""})


_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?(E[+-]\d+)?", re.ASCII)
"""A number as :func:`_decimal_texts` writes it."""

MAX_SHOWN_VALUES = 250_000
"""Values of one document that are looked at, a fifth of a second: workflow tasks also do that."""


class SensitiveMask(TextMask):
    """Masks sensitive values in what people read; beyond :data:`MAX_SHOWN_VALUES` it masks all other values."""

    def __init__(self, sensitive: frozenset[str]) -> None:
        super().__init__(searched_texts(sensitive))
        self._sensitive = sensitive
        self._values_left = MAX_SHOWN_VALUES
        self._numbers = frozenset(
            [Decimal(text) for text in sensitive if len(text) <= MAX_INTEGER_DIGITS + 2 and _NUMBER.fullmatch(text)]
        )

    def text(self, text: str) -> str:
        """The text, with `•••` in place of sensitive values."""
        return MASK if text in self._sensitive else super().text(text)

    def value(self, value: Any) -> Any:
        """The JSON value, with `•••` in place of sensitive values and inside texts and names that contain them."""
        return self._masked(value) if self._sensitive else value

    def _masked(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        self._values_left -= 1
        if self._values_left < 0:
            return MASK
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self._masked(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return list(map(self._masked, value))
        return MASK if self._numbers and value in self._numbers else value


def is_in_id(sensitive: frozenset[str], id: str) -> bool:
    """True if the id is one of the :func:`sensitive_values`, or has a longer one where messages would be masked."""
    long = frozenset(text for text in sensitive if len(text) >= _MIN_IN_ID)
    return id in sensitive or mask_texts(id, searched_texts(long)) != id


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
        """The names of properties, which are not data."""
        self._places: dict[tuple[int, ...], _Place] = {}

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
        return _masked(self.place([self._root]), value)

    def place(self, nodes: Iterable[SchemaNode]) -> _Place | None:
        """The place of the values that these schemas may describe; None if nothing is masked there.

        Each is made once: a list of 250,000 elements has one place for them all, or one for each of its `prefixItems`.
        """
        leading = {id(node.schema): node for node in nodes if id(node.schema) in self._leading}
        if not leading:
            return None
        key = tuple(leading)
        if key not in self._places:
            described = self._same_value(leading.values())
            names = [part for node in described if (part := node.part("propertyNames")) is not None]
            is_marked = any(map(_is_marked, described))
            names_marked = is_marked or any(map(_is_marked, self._same_value(names)))
            self._places[key] = _Place(self, described, is_marked=is_marked, names_marked=names_marked)
        return self._places[key]

    def _same_value(self, nodes: Iterable[SchemaNode]) -> list[SchemaNode]:
        return list(closure(nodes, lambda node: (*same_value(node), *dynamic_targets(node, self._dynamic))))

    def _describing(self, path: tuple[str, ...]) -> Iterator[tuple[SchemaNode, tuple[str, ...]]]:
        """Every schema that may describe the value at ``path`` or one that contains it, with the rest of the path."""
        described = self._same_value([self._root])
        yield from ((node, path) for node in described)
        for depth, name in enumerate(path, start=1):
            described = self._same_value([part for node in described for part in _inside(node, name)])
            yield from ((node, path[depth:]) for node in described)


class _Place:
    """The place of a value in a document: the schemas that may describe it.

    ``is_marked``: the value is sensitive; ``names_marked``: it is if it is an object.
    """

    def __init__(
        self, sensitivity: _Sensitivity, described: list[SchemaNode], *, is_marked: bool, names_marked: bool
    ) -> None:
        self.is_marked, self.names_marked = is_marked, names_marked
        self._sensitivity, self._described = sensitivity, described
        self._declared = {name for node in described for name, _ in node.properties()}
        self._has_patterns = any(node.get("patternProperties") for node in described)
        self._prefix = max((len(node.prefix_items()) for node in described), default=0)
        self._properties: dict[str | None, _Place | None] = {}
        self._elements: dict[int, _Place | None] = {}

    def inside(self, name: str) -> _Place | None:
        """The place of a property; all names that are neither declared nor matched by a pattern have the same."""
        key = name if name in self._declared else None
        if key is None and self._has_patterns:
            return self._property(name)
        if key not in self._properties:
            self._properties[key] = self._property(name)
        return self._properties[key]

    def _property(self, name: str) -> _Place | None:
        return self._sensitivity.place([part for node in self._described for part in inside(node, name)])

    def element(self, index: int) -> _Place | None:
        """The place of an element; all behind the longest `prefixItems` have the same."""
        key = min(index, self._prefix)
        if key not in self._elements:
            parts = [part for node in self._described for part in elements(node, key)]
            self._elements[key] = self._sensitivity.place(parts)
        return self._elements[key]


def _masked(place: _Place | None, value: Any) -> Any:
    """``value`` itself if nothing is masked in it."""
    if place is None:
        return value
    if place.is_marked:
        return MASK
    if isinstance(value, dict):
        if place.names_marked:
            return MASK
        return {name: _masked(place.inside(name), item) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(place.element(index), item) for index, item in enumerate(value)]
    return value


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
