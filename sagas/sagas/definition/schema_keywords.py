"""Makes the checks of a JSON Schema's keywords, and counts the work of each check.

A check is made of the function that checks a part of the schema (``fits_of``), the part in which the keyword is, and
the keyword's value. None if there is nothing to check.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any

from sagas.definition.json_types import ANY_TYPE, NUMBERS, TYPES
from sagas.definition.schema_formats import fits_format
from sagas.definition.schema_nodes import SchemaNode, closure
from sagas.definition.schema_patterns import matches_pattern
from sagas.expressions.work_budget import charge
from sagas.text.exact_numbers import BINARY, comparable_json, is_exact_double, is_multiple

Fits = Callable[[Any], bool]

FitsOf = Callable[[SchemaNode], Fits]
"""Returns the check of a part of the schema."""

_TEXT_PER_STEP = 32
"""Characters of a value that is compared as a text, for one step."""

_NAMES_PER_STEP = 16
"""Names and parts that a keyword passes by, for one step."""

_DIGITS_PER_STEP = 128
"""Digits for which the exponent of a decimal stands, for one step."""

_BITS_SHIFT = 20
"""The conversion of an integer of 1,024 bits to decimal digits takes less than a step, and grows with their square."""

_HASHED = frozenset({str, int, Decimal})
"""Types of which equal JSON values, and no others, are equal in Python."""


def accept(value: Any) -> bool:
    """The check of a part that every value fits."""
    return True


def refuse(value: Any) -> bool:
    """The check of a part that no value fits."""
    return False


def comparable_text(value: Any) -> str:
    """The text that equal JSON values share."""
    text = comparable_json(value)
    charge(2 + len(text) // _TEXT_PER_STEP)
    return text


def _reference(fits_of: FitsOf, node: SchemaNode, reference: str) -> Fits:
    target: Fits | None = None

    def follow(value: Any) -> bool:
        nonlocal target
        if target is None:
            resolved = node.resolver.lookup(reference)
            target = fits_of(SchemaNode(resolved.contents, resolved.resolver))
        return target(value)

    return follow


def _limit(fits: Callable[[Any, Any], bool]) -> Any:
    return lambda fits_of, node, limit: lambda value: fits(value, limit)


def _compare_numbers(fits: Callable[[Any, Any], bool], value: int | Decimal, limit: int | Decimal) -> bool:
    """Return whether a number fits a limit, and count what is above a step: an integer of many digits becomes a
    decimal, and the quotient of two decimals may have all the digits for which their exponents stand.
    """
    if steps := _number_steps(value) + _number_steps(limit):
        charge(steps)
    return fits(value, limit)


def _number_steps(number: int | Decimal) -> int:
    if isinstance(number, Decimal):
        return abs(number.adjusted()) // _DIGITS_PER_STEP
    return number.bit_length() ** 2 >> _BITS_SHIFT


def _enum(fits_of: FitsOf, node: SchemaNode, listed: Any) -> Fits:
    texts = frozenset(map(comparable_text, listed))
    plain = frozenset(value for value in listed if type(value) in _HASHED)
    return lambda value: value in plain if type(value) in _HASHED else comparable_text(value) in texts


def _const(fits_of: FitsOf, node: SchemaNode, wanted: Any) -> Fits:
    return _enum(fits_of, node, [wanted])


def _pattern(fits_of: FitsOf, node: SchemaNode, pattern: str) -> Fits:
    return lambda value: matches_pattern(pattern, value)


def _format(fits_of: FitsOf, node: SchemaNode, name: Any) -> Fits | None:
    if not isinstance(name, str):
        return None

    def check(value: str) -> bool:
        charge(1 + len(value) // _TEXT_PER_STEP)
        return fits_format(name, value)

    return check


def _binary(fits_of: FitsOf, node: SchemaNode, wanted: Any) -> Fits | None:
    return is_exact_double if wanted is True else None


def _unique_items(fits_of: FitsOf, node: SchemaNode, wanted: Any) -> Fits | None:
    def check(value: list[Any]) -> bool:
        seen: set[str] = set()
        for item in value:
            text = comparable_text(item)
            if text in seen:
                return False
            seen.add(text)
        return True

    return check if wanted else None


def _required(fits_of: FitsOf, node: SchemaNode, names: Any) -> Fits:
    needed = frozenset(names)

    def check(value: dict[str, Any]) -> bool:
        charge(len(needed) // _NAMES_PER_STEP)
        return needed <= value.keys()

    return check


def _dependent_required(fits_of: FitsOf, node: SchemaNode, dependent: Any) -> Fits:
    needed = {name: frozenset(names) for name, names in dependent.items()}

    def check(value: dict[str, Any]) -> bool:
        charge(len(needed) // _NAMES_PER_STEP)
        return all(names <= value.keys() for name, names in needed.items() if name in value)

    return check


def _dependent_schemas(fits_of: FitsOf, node: SchemaNode, _: Any) -> Fits:
    parts = {name: fits_of(part) for name, part in node.dependent_schemas()}

    def check(value: dict[str, Any]) -> bool:
        charge(len(parts) // _NAMES_PER_STEP)
        return all(part(value) for name, part in parts.items() if name in value)

    return check


def _property_names(fits_of: FitsOf, node: SchemaNode, part: Any) -> Fits:
    fits = fits_of(node.child(part))
    return lambda value: all(map(fits, value))


def _properties(fits_of: FitsOf, node: SchemaNode, _: Any) -> Fits:
    parts = {name: fits for name, part in node.properties() if (fits := fits_of(part)) is not accept}

    def check(value: dict[str, Any]) -> bool:
        charge(min(len(parts), len(value)) // _NAMES_PER_STEP)
        if len(value) < len(parts):
            return all(parts[name](item) for name, item in value.items() if name in parts)
        return all(part(value[name]) for name, part in parts.items() if name in value)

    return check


def _pattern_properties(fits_of: FitsOf, node: SchemaNode, _: Any) -> Fits:
    parts = [(pattern, fits_of(part)) for pattern, part in node.patterns()]
    return lambda value: all(
        part(item) for pattern, part in parts for name, item in value.items() if matches_pattern(pattern, name)
    )


def _additional_properties(fits_of: FitsOf, node: SchemaNode, part: Any) -> Fits | None:
    fits = fits_of(node.child(part))
    declared = frozenset(name for name, _ in node.properties())
    patterns = [pattern for pattern, _ in node.patterns()]

    def check(value: dict[str, Any]) -> bool:
        charge(len(value) // _NAMES_PER_STEP)
        if fits is refuse and not patterns:
            return value.keys() <= declared
        return all(
            fits(item)
            for name, item in value.items()
            if name not in declared and not any(matches_pattern(pattern, name) for pattern in patterns)
        )

    return None if fits is accept else check


def _items(fits_of: FitsOf, node: SchemaNode, part: Any) -> Fits | None:
    fits, prefix = fits_of(node.child(part)), len(node.prefix_items())
    if fits is refuse:
        return lambda value: len(value) <= prefix
    if fits is accept:
        return None
    return lambda value: all(map(fits, islice(value, prefix, None) if prefix else value))


def _prefix_items(fits_of: FitsOf, node: SchemaNode, _: Any) -> Fits:
    parts = [fits_of(part) for part in node.prefix_items()]
    return lambda value: all(part(item) for part, item in zip(parts, value, strict=False))


def _contains(fits_of: FitsOf, node: SchemaNode, part: Any) -> Fits:
    fits = fits_of(node.child(part))
    least, most = node.schema.get("minContains", 1), node.schema.get("maxContains")

    def check(value: list[Any]) -> bool:
        charge(len(value) // 4)
        count = 0
        for item in value:
            if fits(item):
                count += 1
                if most is not None and count > most:
                    return False
                if most is None and count >= least:
                    return True
        return count >= least

    return check


def _all_of(fits_of: FitsOf, node: SchemaNode, _: Any) -> Fits:
    parts = [fits_of(part) for part in node.all_of()]
    return lambda value: all(part(value) for part in parts)


def _any_of(fits_of: FitsOf, node: SchemaNode, _: Any) -> Fits:
    parts = [fits_of(part) for part in node.alternatives("anyOf")]

    def check(value: Any) -> bool:
        charge(len(parts) // _NAMES_PER_STEP)
        return any(part(value) for part in parts)

    return check


def _one_of(fits_of: FitsOf, node: SchemaNode, _: Any) -> Fits:
    parts = [fits_of(part) for part in node.alternatives("oneOf")]

    def check(value: Any) -> bool:
        charge(len(parts) // _NAMES_PER_STEP)
        return len(list(islice((True for part in parts if part(value)), 2))) == 1

    return check


def _not(fits_of: FitsOf, node: SchemaNode, part: Any) -> Fits:
    fits = fits_of(node.child(part))
    return lambda value: not fits(value)


def _if(fits_of: FitsOf, node: SchemaNode, condition: Any) -> Fits:
    holds = fits_of(node.child(condition))
    then, otherwise = (fits_of(node.child(node.schema.get(keyword, True))) for keyword in ("then", "else"))
    return lambda value: then(value) if holds(value) else otherwise(value)


def _unevaluated_properties(fits_of: FitsOf, node: SchemaNode, part: Any) -> Fits:
    fits = fits_of(node.child(part))

    def check(value: dict[str, Any]) -> bool:
        evaluated = _evaluated_names(fits_of, node, value)
        return all(fits(item) for name, item in value.items() if name not in evaluated)

    return check


def _evaluated_names(fits_of: FitsOf, node: SchemaNode, value: dict[str, Any]) -> Collection[str]:
    """The names that the schema, and all parts of it that fit the value, have a schema for."""
    evaluated: set[str] = set()
    for part in _applied(fits_of, node, value):
        charge(3 + len(value) // 2)
        if "additionalProperties" in part.schema or (part is not node and "unevaluatedProperties" in part.schema):
            return value.keys()
        evaluated |= value.keys() & part.schema.get("properties", {}).keys()
        for pattern, _ in part.patterns():
            evaluated |= {name for name in value if matches_pattern(pattern, name)}
    return evaluated


def _unevaluated_items(fits_of: FitsOf, node: SchemaNode, part: Any) -> Fits:
    fits = fits_of(node.child(part))

    def check(value: list[Any]) -> bool:
        begin, evaluated = 0, set[int]()
        for part in _applied(fits_of, node, value):
            charge(3 + len(value) // 2)
            if "items" in part.schema or (part is not node and "unevaluatedItems" in part.schema):
                return True
            begin = max(begin, len(part.prefix_items()))
            if (wanted := part.part("contains")) is not None:
                contained = fits_of(wanted)
                evaluated |= {index for index, item in enumerate(value) if contained(item)}
        return all(fits(item) for index, item in enumerate(value) if index >= begin and index not in evaluated)

    return check


def _applied(fits_of: FitsOf, node: SchemaNode, value: Any) -> list[SchemaNode]:
    """The schema, and all parts of it that apply to the same value and fit it."""

    def following(part: SchemaNode) -> Iterator[SchemaNode]:
        charge(6)
        yield from part.referenced()
        for keyword in ("allOf", "anyOf", "oneOf"):
            yield from (other for other in part.alternatives(keyword) if fits_of(other)(value))
        if isinstance(value, dict):
            yield from (other for name, other in part.dependent_schemas() if name in value)
        if (condition := part.part("if")) is not None:
            holds = fits_of(condition)(value)
            branch = part.part("then" if holds else "else")
            yield from (other for other in (condition if holds else None, branch) if other is not None)

    return list(closure([node], following))


_OBJECT, _ARRAY, _STRING = TYPES["object"], TYPES["array"], TYPES["string"]

_NUMBER_LIMITS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "multipleOf": is_multiple,
}
"""Keywords that compare a number with another one, and the rule."""

LIMITS: Mapping[str, tuple[frozenset[type], Callable[[Any, Any], bool]]] = {
    **{keyword: (NUMBERS, partial(_compare_numbers, fits)) for keyword, fits in _NUMBER_LIMITS.items()},
    "minLength": (_STRING, lambda value, limit: len(value) >= limit),
    "maxLength": (_STRING, lambda value, limit: len(value) <= limit),
    "minItems": (_ARRAY, lambda value, limit: len(value) >= limit),
    "maxItems": (_ARRAY, lambda value, limit: len(value) <= limit),
    "minProperties": (_OBJECT, lambda value, limit: len(value) >= limit),
    "maxProperties": (_OBJECT, lambda value, limit: len(value) <= limit),
}
"""Keywords that compare a value with a number: the types to which they apply, and the rule."""

KEYWORDS: Mapping[str, tuple[frozenset[type], Callable[[FitsOf, SchemaNode, Any], Fits | None]]] = {
    **{keyword: (types, _limit(fits)) for keyword, (types, fits) in LIMITS.items()},
    "enum": (ANY_TYPE, _enum),
    "const": (ANY_TYPE, _const),
    "required": (_OBJECT, _required),
    "dependentRequired": (_OBJECT, _dependent_required),
    BINARY: (NUMBERS, _binary),
    "pattern": (_STRING, _pattern),
    "format": (_STRING, _format),
    "additionalProperties": (_OBJECT, _additional_properties),
    "properties": (_OBJECT, _properties),
    "patternProperties": (_OBJECT, _pattern_properties),
    "propertyNames": (_OBJECT, _property_names),
    "prefixItems": (_ARRAY, _prefix_items),
    "items": (_ARRAY, _items),
    "contains": (_ARRAY, _contains),
    "uniqueItems": (_ARRAY, _unique_items),
    "$ref": (ANY_TYPE, _reference),
    "allOf": (ANY_TYPE, _all_of),
    "anyOf": (ANY_TYPE, _any_of),
    "oneOf": (ANY_TYPE, _one_of),
    "not": (ANY_TYPE, _not),
    "if": (ANY_TYPE, _if),
    "dependentSchemas": (_OBJECT, _dependent_schemas),
    "unevaluatedProperties": (_OBJECT, _unevaluated_properties),
    "unevaluatedItems": (_ARRAY, _unevaluated_items),
}
"""Keywords with the types to which they apply; those that touch little come first."""
