"""Decides whether a value fits a JSON Schema. Each part of a schema is compiled to a function once.

jsonschema, which finds the errors of a value that does not fit, takes ten times as long. A part of a schema that is
applied to a value costs a step, and more for what its keywords touch beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from types import NoneType
from typing import Any

from sagas.definition.schema_formats import fits_format
from sagas.definition.schema_nodes import SchemaNode, closure
from sagas.definition.schema_patterns import matches_pattern
from sagas.expressions.work_budget import charge
from sagas.text.exact_json import canonical_json
from sagas.text.exact_numbers import BINARY, comparable, is_exact_double, is_multiple, is_whole

Fits = Callable[[Any], bool]

_TEXT_PER_STEP = 32
"""Characters of a value that is compared as a text, for one step."""

_NAMES_PER_STEP = 16
"""Names and parts that a keyword passes by, for one step."""

_KEYWORDS_PER_STEP = 3

_NUMBERS = frozenset({int, Decimal})
_ANY = frozenset({dict, list, str, int, Decimal, bool, NoneType, object})
"""The types of JSON values; `object` stands for all that is none, such as a tuple."""

_HASHED = frozenset({str, int, Decimal})
"""Types of which equal JSON values, and no others, are equal in Python."""

_TYPES: Mapping[str, frozenset[type]] = {
    "object": frozenset({dict}),
    "array": frozenset({list}),
    "string": frozenset({str}),
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "boolean": frozenset({bool}),
    "null": frozenset({NoneType}),
}


def has_type(value: Any, kind: str) -> bool:
    """Return whether a JSON value has a type of JSON Schema, to which 12.0 is an integer."""
    return _type_of(value) in _TYPES.get(kind, _ANY) and (kind != "integer" or is_whole(value))


def comparable_text(value: Any) -> str:
    """The text that equal JSON values share."""
    text = canonical_json(comparable(value))
    charge(2 + len(text) // _TEXT_PER_STEP)
    return text


class SchemaVerdicts:
    """The compiled parts of one schema, in which a part means the same wherever it is reached from."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Any, Fits]] = {}
        """By the id of a part, which is kept with it: an id is only that of a part as long as the part exists."""

    def of(self, node: SchemaNode) -> Fits:
        """The function that returns whether a value fits a part of the schema. It raises Unresolvable for a reference
        that leads nowhere, TooComplex, and RecursionError for a part that contains itself.
        """
        if not isinstance(node.schema, dict):
            return _refuse if node.schema is False else _accept
        known = self._compiled.get(id(node.schema))
        if known is None:
            known = self._compiled[id(node.schema)] = (node.schema, self._compile(node))
        return known[1]

    def _compile(self, node: SchemaNode) -> Fits:
        kinds = node.get("type")
        named = () if kinds is None else (kinds,) if isinstance(kinds, str) else kinds
        types = _ANY if kinds is None else frozenset().union(*(_TYPES.get(kind, frozenset()) for kind in named))
        checks: dict[type, list[Fits]] = {type_: [] for type_ in types}
        if "integer" in named and "number" not in named:
            checks[Decimal].append(is_whole)
        for keyword, (applies, make) in _KEYWORDS.items():
            if keyword in node.schema and (check := make(self, node, node.schema[keyword])) is not None:
                for type_ in applies & types:
                    checks[type_].append(check)
        if types == _ANY and not any(checks.values()):
            return _accept
        compiled = {type_: (1 + len(listed) // _KEYWORDS_PER_STEP, listed) for type_, listed in checks.items()}

        def fits(value: Any) -> bool:
            known = compiled.get(type(value)) or compiled.get(_type_of(value))
            if known is None:
                charge()
                return False
            charge(known[0])
            for check in known[1]:  # noqa: SIM110 - a generator takes longer than most checks
                if not check(value):
                    return False
            return True

        return fits

    def by_keyword(self, keyword: str, node: SchemaNode, value: Any) -> bool:
        """Return whether a value fits one keyword of a part."""
        applies, make = _KEYWORDS[keyword]
        check = make(self, node, node.schema[keyword]) if _type_of(value) in applies else None
        return check is None or check(value)

    def parts(self, nodes: Collection[SchemaNode]) -> list[Fits]:
        """The functions of several parts."""
        return [self.of(node) for node in nodes]


def _accept(value: Any) -> bool:
    return True


def _refuse(value: Any) -> bool:
    return False


def _type_of(value: Any) -> type:
    """The type of a JSON value, for which a class of its own counts as what it is derived from."""
    return (
        type(value)
        if type(value) in _ANY
        else next((type_ for type_ in (bool, int, Decimal, str, dict, list) if isinstance(value, type_)), object)
    )


# --- keywords: each makes the check of its value; None: there is nothing to check ------------------------------------


def _reference(verdicts: SchemaVerdicts, node: SchemaNode, reference: str) -> Fits:
    target: Fits | None = None

    def follow(value: Any) -> bool:
        nonlocal target
        if target is None:
            resolved = node.resolver.lookup(reference)
            target = verdicts.of(SchemaNode(resolved.contents, resolved.resolver))
        return target(value)

    return follow


def _limit(fits: Callable[[Any, Any], bool]) -> Any:
    return lambda verdicts, node, limit: lambda value: fits(value, limit)


def _enum(verdicts: SchemaVerdicts, node: SchemaNode, listed: Any) -> Fits:
    texts = frozenset(map(comparable_text, listed))
    plain = frozenset(value for value in listed if type(value) in _HASHED)
    return lambda value: value in plain if type(value) in _HASHED else comparable_text(value) in texts


def _const(verdicts: SchemaVerdicts, node: SchemaNode, wanted: Any) -> Fits:
    return _enum(verdicts, node, [wanted])


def _pattern(verdicts: SchemaVerdicts, node: SchemaNode, pattern: str) -> Fits:
    return lambda value: matches_pattern(pattern, value)


def _format(verdicts: SchemaVerdicts, node: SchemaNode, name: Any) -> Fits | None:
    if not isinstance(name, str):
        return None

    def check(value: str) -> bool:
        charge(1 + len(value) // _TEXT_PER_STEP)
        return fits_format(name, value)

    return check


def _binary(verdicts: SchemaVerdicts, node: SchemaNode, wanted: Any) -> Fits | None:
    return is_exact_double if wanted is True else None


def _unique_items(verdicts: SchemaVerdicts, node: SchemaNode, wanted: Any) -> Fits | None:
    def check(value: list[Any]) -> bool:
        seen: set[str] = set()
        for item in value:
            text = comparable_text(item)
            if text in seen:
                return False
            seen.add(text)
        return True

    return check if wanted else None


def _required(verdicts: SchemaVerdicts, node: SchemaNode, names: Any) -> Fits:
    needed = frozenset(names)

    def check(value: dict[str, Any]) -> bool:
        charge(len(needed) // _NAMES_PER_STEP)
        return needed <= value.keys()

    return check


def _dependent_required(verdicts: SchemaVerdicts, node: SchemaNode, dependent: Any) -> Fits:
    needed = {name: frozenset(names) for name, names in dependent.items()}

    def check(value: dict[str, Any]) -> bool:
        charge(len(needed) // _NAMES_PER_STEP)
        return all(names <= value.keys() for name, names in needed.items() if name in value)

    return check


def _dependent_schemas(verdicts: SchemaVerdicts, node: SchemaNode, _: Any) -> Fits:
    parts = {name: verdicts.of(part) for name, part in node.dependent_schemas()}

    def check(value: dict[str, Any]) -> bool:
        charge(len(parts) // _NAMES_PER_STEP)
        return all(part(value) for name, part in parts.items() if name in value)

    return check


def _property_names(verdicts: SchemaVerdicts, node: SchemaNode, part: Any) -> Fits:
    fits = verdicts.of(node.child(part))
    return lambda value: all(map(fits, value))


def _properties(verdicts: SchemaVerdicts, node: SchemaNode, _: Any) -> Fits:
    parts = {name: fits for name, part in node.properties() if (fits := verdicts.of(part)) is not _accept}

    def check(value: dict[str, Any]) -> bool:
        charge(min(len(parts), len(value)) // _NAMES_PER_STEP)
        if len(value) < len(parts):
            return all(parts[name](item) for name, item in value.items() if name in parts)
        return all(part(value[name]) for name, part in parts.items() if name in value)

    return check


def _pattern_properties(verdicts: SchemaVerdicts, node: SchemaNode, _: Any) -> Fits:
    parts = [(pattern, verdicts.of(part)) for pattern, part in node.patterns()]
    return lambda value: all(
        part(item) for pattern, part in parts for name, item in value.items() if matches_pattern(pattern, name)
    )


def _additional_properties(verdicts: SchemaVerdicts, node: SchemaNode, rest: Any) -> Fits | None:
    fits = verdicts.of(node.child(rest))
    declared = frozenset(name for name, _ in node.properties())
    patterns = [pattern for pattern, _ in node.patterns()]

    def check(value: dict[str, Any]) -> bool:
        charge(len(value) // _NAMES_PER_STEP)
        if fits is _refuse and not patterns:
            return value.keys() <= declared
        return all(
            fits(item)
            for name, item in value.items()
            if name not in declared and not any(matches_pattern(pattern, name) for pattern in patterns)
        )

    return None if fits is _accept else check


def _items(verdicts: SchemaVerdicts, node: SchemaNode, part: Any) -> Fits | None:
    fits, prefix = verdicts.of(node.child(part)), len(node.prefix_items())
    if fits is _refuse:
        return lambda value: len(value) <= prefix
    if fits is _accept:
        return None
    return lambda value: all(map(fits, islice(value, prefix, None) if prefix else value))


def _prefix_items(verdicts: SchemaVerdicts, node: SchemaNode, _: Any) -> Fits:
    parts = verdicts.parts(node.prefix_items())
    return lambda value: all(part(item) for part, item in zip(parts, value, strict=False))


def _contains(verdicts: SchemaVerdicts, node: SchemaNode, part: Any) -> Fits:
    fits = verdicts.of(node.child(part))
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


def _all_of(verdicts: SchemaVerdicts, node: SchemaNode, _: Any) -> Fits:
    parts = verdicts.parts(list(node.all_of()))
    return lambda value: all(part(value) for part in parts)


def _any_of(verdicts: SchemaVerdicts, node: SchemaNode, _: Any) -> Fits:
    parts = verdicts.parts(node.alternatives("anyOf"))

    def check(value: Any) -> bool:
        charge(len(parts) // _NAMES_PER_STEP)
        return any(part(value) for part in parts)

    return check


def _one_of(verdicts: SchemaVerdicts, node: SchemaNode, _: Any) -> Fits:
    parts = verdicts.parts(node.alternatives("oneOf"))

    def check(value: Any) -> bool:
        charge(len(parts) // _NAMES_PER_STEP)
        return len(list(islice((True for part in parts if part(value)), 2))) == 1

    return check


def _not(verdicts: SchemaVerdicts, node: SchemaNode, part: Any) -> Fits:
    fits = verdicts.of(node.child(part))
    return lambda value: not fits(value)


def _if(verdicts: SchemaVerdicts, node: SchemaNode, condition: Any) -> Fits:
    holds = verdicts.of(node.child(condition))
    then, otherwise = (verdicts.of(node.child(node.schema.get(keyword, True))) for keyword in ("then", "else"))
    return lambda value: then(value) if holds(value) else otherwise(value)


def _unevaluated_properties(verdicts: SchemaVerdicts, node: SchemaNode, rest: Any) -> Fits:
    fits = verdicts.of(node.child(rest))

    def check(value: dict[str, Any]) -> bool:
        evaluated = _evaluated_names(verdicts, node, value)
        return all(fits(item) for name, item in value.items() if name not in evaluated)

    return check


def _evaluated_names(verdicts: SchemaVerdicts, node: SchemaNode, value: dict[str, Any]) -> Collection[str]:
    """The names that the schema, and all parts of it that fit the value, have a schema for."""
    evaluated: set[str] = set()
    for part in _applied(verdicts, node, value):
        charge(3 + len(value) // 2)
        if "additionalProperties" in part.schema or (part is not node and "unevaluatedProperties" in part.schema):
            return value.keys()
        evaluated |= value.keys() & part.schema.get("properties", {}).keys()
        for pattern, _ in part.patterns():
            evaluated |= {name for name in value if matches_pattern(pattern, name)}
    return evaluated


def _unevaluated_items(verdicts: SchemaVerdicts, node: SchemaNode, rest: Any) -> Fits:
    fits = verdicts.of(node.child(rest))

    def check(value: list[Any]) -> bool:
        begin, evaluated = 0, set[int]()
        for part in _applied(verdicts, node, value):
            charge(3 + len(value) // 2)
            if "items" in part.schema or (part is not node and "unevaluatedItems" in part.schema):
                return True
            begin = max(begin, len(part.prefix_items()))
            if (wanted := part.part("contains")) is not None:
                contained = verdicts.of(wanted)
                evaluated |= {index for index, item in enumerate(value) if contained(item)}
        return all(fits(item) for index, item in enumerate(value) if index >= begin and index not in evaluated)

    return check


def _applied(verdicts: SchemaVerdicts, node: SchemaNode, value: Any) -> list[SchemaNode]:
    """The schema, and all parts of it that apply to the same value and fit it."""

    def following(part: SchemaNode) -> Iterator[SchemaNode]:
        charge(6)
        yield from part.referenced()
        for keyword in ("allOf", "anyOf", "oneOf"):
            yield from (other for other in part.alternatives(keyword) if verdicts.of(other)(value))
        if isinstance(value, dict):
            yield from (other for name, other in part.dependent_schemas() if name in value)
        if (condition := part.part("if")) is not None:
            holds = verdicts.of(condition)(value)
            branch = part.part("then" if holds else "else")
            yield from (other for other in (condition if holds else None, branch) if other is not None)

    return list(closure([node], following))


_OBJECT, _ARRAY, _STRING = _TYPES["object"], _TYPES["array"], _TYPES["string"]

LIMITS: Mapping[str, tuple[frozenset[type], Callable[[Any, Any], bool]]] = {
    "minimum": (_NUMBERS, lambda value, limit: value >= limit),
    "maximum": (_NUMBERS, lambda value, limit: value <= limit),
    "exclusiveMinimum": (_NUMBERS, lambda value, limit: value > limit),
    "exclusiveMaximum": (_NUMBERS, lambda value, limit: value < limit),
    "minLength": (_STRING, lambda value, limit: len(value) >= limit),
    "maxLength": (_STRING, lambda value, limit: len(value) <= limit),
    "minItems": (_ARRAY, lambda value, limit: len(value) >= limit),
    "maxItems": (_ARRAY, lambda value, limit: len(value) <= limit),
    "minProperties": (_OBJECT, lambda value, limit: len(value) >= limit),
    "maxProperties": (_OBJECT, lambda value, limit: len(value) <= limit),
    "multipleOf": (_NUMBERS, is_multiple),
}
"""Keywords that compare a value with a number: the types to which they apply, and the rule."""

_KEYWORDS: Mapping[str, tuple[frozenset[type], Callable[[SchemaVerdicts, SchemaNode, Any], Fits | None]]] = {
    **{keyword: (types, _limit(fits)) for keyword, (types, fits) in LIMITS.items()},
    "enum": (_ANY, _enum),
    "const": (_ANY, _const),
    "required": (_OBJECT, _required),
    "dependentRequired": (_OBJECT, _dependent_required),
    BINARY: (_NUMBERS, _binary),
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
    "$ref": (_ANY, _reference),
    "allOf": (_ANY, _all_of),
    "anyOf": (_ANY, _any_of),
    "oneOf": (_ANY, _one_of),
    "not": (_ANY, _not),
    "if": (_ANY, _if),
    "dependentSchemas": (_OBJECT, _dependent_schemas),
    "unevaluatedProperties": (_OBJECT, _unevaluated_properties),
    "unevaluatedItems": (_ARRAY, _unevaluated_items),
}
"""Each with the types to which it applies; those that touch little come first."""
