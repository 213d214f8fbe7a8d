"""The merged view of JSON Schemas that a value has to fit at once, and the reasons why no value of a type can.

A reason is certain: keywords that are not understood only leave an impossible schema unreported. Of which schemas a
value has to fit, only references and `allOf` are followed; an alternative may be added by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, gcd, lcm
from typing import Any, NamedTuple

from sagas.definition.json_types import has_type
from sagas.definition.schema_messages import shown_value
from sagas.definition.schema_nodes import Path, SchemaNode, always_applied, closure
from sagas.definition.schema_patterns import matches_pattern, may_match
from sagas.errors import UsageError
from sagas.expressions.work_budget import charge
from sagas.text.exact_numbers import comparable_json, is_equal
from sagas.text.json_values import as_mapping

KINDS = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
"""The types of JSON Schema, but `number` is divided into `integer` and `fraction`."""

_NUMBERS = frozenset({"integer", "fraction"})
_LIMITS = (
    (_NUMBERS, ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    (frozenset({"string"}), ("minLength",), ("maxLength",)),
    (frozenset({"array"}), ("minItems",), ("maxItems",)),
    (frozenset({"object"}), ("minProperties",), ("maxProperties",)),
)
"""The types of a value, and the keywords that limit it from below and from above."""

_LONGEST = 2_000
"""Digits of a number up to which its multiples are looked for."""

_PLAIN = {"type", "enum", "const", "title", "description", "default", "examples", "deprecated", "$comment"}
"""Keywords for which comparing types and values is enough."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Keywords that no value fits at once.

    ``kinds`` are the types of which no value fits, ``place`` is the path of one of the keywords in the first schema;
    empty if all of them are in others.
    """

    message: str
    kinds: frozenset[str]
    place: Path


class _Bound(NamedTuple):
    """A limit. ``is_open``: the value itself is out; ``place``: as of :class:`Contradiction`."""

    value: int | Decimal
    is_open: bool
    text: str
    place: Path


def certain_parts(nodes: Iterable[SchemaNode], dynamic: Mapping[str, list[SchemaNode]]) -> list[SchemaNode]:
    """All schemas that a value which fits ``nodes`` has to fit, in the order of their places.

    Where a `$dynamicRef` leads depends on the way to it, unless only one schema has the name. Raises TooComplex.
    """

    def following(part: SchemaNode) -> Iterable[SchemaNode]:
        charge()
        name = str(part.get("$dynamicRef")).partition("#")[2]
        return part.all_of() if len(dynamic.get(name, ())) > 1 else always_applied(part)

    return list(closure(nodes, following))


def is_false(schema: Any) -> bool:
    """Return whether a schema is written so that nothing fits it, which forbids a property or an element."""
    return schema is False or (
        isinstance(schema, Mapping) and (schema.get("not") is True or ("not" in schema and schema["not"] == {}))
    )


class Conjunction:
    """Schemas that a value has to fit at once. ``allows`` asks the validator whether a value fits them all.

    Every method raises TooComplex where the budget of :mod:`sagas.definition.schema_patterns` is spent.
    """

    def __init__(self, parts: Sequence[SchemaNode], allows: Callable[[Any], bool]) -> None:
        self._schemas: list[Mapping[str, Any]] = [part.schema for part in parts]
        self._allows = allows

    def contradictions(self) -> Iterator[Contradiction]:
        """Each reason why no value, or no value of some types, fits."""
        if not self.kinds:
            named = dict.fromkeys(" or ".join(_names(schema["type"])) for _, schema in self._with("type"))
            message = f"no value fits: `type` is {', and also '.join(list(named)[:5])}"
            yield Contradiction(message, KINDS, self._place("type"))
            return
        yield from self._values()
        for kinds, lowest, highest in _LIMITS:
            if not kinds & self.kinds:
                continue
            lows = [bound for keyword in lowest for bound in self._limits(keyword)]
            highs = [bound for keyword in highest for bound in self._limits(keyword)]
            if "array" in kinds:
                lows, highs = [*lows, *self._least_items()], [*highs, *self._most_items()]
                yield from self._contains()
            if "object" in kinds:
                lows, highs = [*lows, *self._least_fields()], [*highs, *self._most_fields()]
                yield from self._names_refused()
            yield from self._between(lows, highs, kinds)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The types that `type` allows."""
        kinds = KINDS
        for _, schema in self._with("type"):
            named = frozenset(_names(schema["type"]))
            kinds &= named | _NUMBERS if "number" in named else named
        return kinds

    @cached_property
    def required(self) -> dict[str, Path]:
        """Each field that must be there, and the place that says so."""
        places: dict[str, Path] = {}
        for own, schema in self._with("required"):
            for index, name in enumerate(_names(schema["required"])):
                places.setdefault(name, ("required", index) if own else ())
        waiting = list(places)
        dependent = self._with("dependentRequired")
        while waiting and dependent:
            name = waiting.pop()
            for own, schema in dependent:
                for index, other in enumerate(_names(schema["dependentRequired"].get(name))):
                    if other not in places:
                        places[other] = ("dependentRequired", name, index) if own else ()
                        waiting.append(other)
        return places

    def forbids(self, name: str) -> bool:
        """Return whether no object that fits has this field."""
        charge(len(self._schemas))
        return any(_forbids(schema, name) for schema in self._schemas)

    def _with(self, keyword: str) -> list[tuple[bool, Mapping[str, Any]]]:
        """The schemas with a keyword, each with True if it is the first of all."""
        return [(index == 0, schema) for index, schema in enumerate(self._schemas) if keyword in schema]

    def _place(self, *keywords: str) -> Path:
        return next(((keyword,) for keyword in keywords if keyword in self._schemas[0]), ())

    def _values(self) -> Iterator[Contradiction]:
        lists = [(schema["const"],) for _, schema in self._with("const")]
        lists += [schema["enum"] for _, schema in self._with("enum")]
        if not lists:
            return
        charge(sum(map(len, lists)))
        texts = [{comparable_json(value) for value in listed} for listed in lists]
        listed = [value for value in min(lists, key=len) if all(comparable_json(value) in other for other in texts)]
        keyword = "enum" if self._with("enum") and not self._place("const") else "const"
        place = self._place(keyword)
        if not listed:
            constant = self._schemas[0].get("const")
            what = f"{shown_value(constant)} is not in `enum`" if place == ("const",) else f"the `{keyword}`s differ"
            if keyword == "enum" and len(lists) > 1:
                what = "nothing is in every `enum` that applies here"
            yield Contradiction(f"no value fits: {what}", KINDS, place)
            return
        typed = [value for value in listed if self._has_type(value)]
        if not typed:
            kinds = " or ".join(
                dict.fromkeys(name for _, schema in self._with("type") for name in _names(schema["type"]))
            )
            yield Contradiction(f"no value fits: nothing in `{keyword}` has the `type` {kinds}", KINDS, place)
        elif self._is_more_than_values and not any(map(self._allows, typed)):
            what = f"nothing in `{keyword}` fits the other keywords that apply here"
            yield Contradiction(f"no value fits: {what}", KINDS, place)

    def _has_type(self, value: Any) -> bool:
        return all(any(has_type(value, kind) for kind in _names(schema["type"])) for _, schema in self._with("type"))

    @property
    def _is_more_than_values(self) -> bool:
        following = {"$ref", "allOf", "$id", "$anchor", "$defs"}  # which lead to other parts, or to none
        return any(
            key not in _PLAIN and key not in following and not key.startswith("x-")
            for schema in self._schemas
            for key in schema
        )

    def _limits(self, keyword: str) -> Iterator[_Bound]:
        for own, schema in self._with(keyword):
            if isinstance(value := schema[keyword], int | Decimal):
                text = f"`{keyword}` is {value}"
                yield _Bound(value, keyword.startswith("exclusive"), text, (keyword,) if own else ())

    def _between(
        self, lows: Collection[_Bound], highs: Collection[_Bound], kinds: frozenset[str]
    ) -> Iterator[Contradiction]:
        if not lows or not highs:
            return
        low = max(lows, key=lambda bound: (bound.value, bound.is_open))
        high = min(highs, key=lambda bound: (bound.value, not bound.is_open))
        place = low.place or high.place
        if low.value > high.value or (low.value == high.value and (low.is_open or high.is_open)):
            yield Contradiction(f"{low.text}, and {high.text}: no value fits both", kinds, place)
        elif kinds == _NUMBERS and (step := self._step()) is not None and _is_between_multiples(low, high, step):
            what = "whole number" if step == 1 else f"multiple of {step}"
            message = f"{low.text}, and {high.text}: no {what} fits both"
            yield Contradiction(message, kinds & self.kinds, place)

    def _step(self) -> Fraction | None:
        """All numbers that fit are multiples of it; None without `multipleOf` and `integer`."""
        divisors = [schema["multipleOf"] for _, schema in self._with("multipleOf")]
        step = None if "fraction" in self.kinds else Fraction(1)
        for divisor in divisors:
            if isinstance(divisor, int | Decimal) and divisor > 0 and _is_short(divisor):
                other = Fraction(divisor)
                step = other if step is None else _common_multiple(step, other)
            if step is not None and step.numerator.bit_length() > _LONGEST * 4:
                return None
        return step

    def _least_items(self) -> Iterator[_Bound]:
        for own, schema in self._with("contains"):
            least = schema.get("minContains", 1)
            if isinstance(least, int | Decimal) and least > 0:
                text = f"`contains` needs {least} element{'s' if least > 1 else ''}"
                yield _Bound(least, False, text, ("contains",) if own else ())

    def _most_items(self) -> Iterator[_Bound]:
        for index, schema in enumerate(self._schemas):
            prefix = schema.get("prefixItems")
            prefix = prefix if isinstance(prefix, list) else []
            place = next(((key,) for key in ("items", "prefixItems") if index == 0 and key in schema), ())
            if is_false(schema.get("items")):
                yield _Bound(len(prefix), False, f"`items: false` leaves {len(prefix)}", place)
            refused = next((number for number, part in enumerate(prefix) if is_false(part)), None)
            if refused is not None:
                yield _Bound(refused, False, f"`prefixItems` leaves {refused}", place)
            elements = schema.get("items")
            listed = elements.get("enum") if isinstance(elements, Mapping) and not prefix else None
            if isinstance(listed, list) and any(other.get("uniqueItems") is True for other in self._schemas):
                different = len({comparable_json(value) for value in listed})
                yield _Bound(different, False, f"{different} elements can differ under `uniqueItems`", place)

    def _contains(self) -> Iterator[Contradiction]:
        for own, schema in self._with("contains"):
            least, most = schema.get("minContains", 1), schema.get("maxContains")
            if not isinstance(least, int | Decimal):
                continue
            if isinstance(most, int | Decimal) and least > most:
                message = f"`minContains` is {least}, and `maxContains` is {most}: no value fits both"
                place = "minContains" if "minContains" in schema else "maxContains"
                yield Contradiction(message, frozenset({"array"}), (place,) if own else ())
            elif is_false(schema["contains"]) and least > 0:
                message = "no list fits: `contains` refuses every element"
                yield Contradiction(message, frozenset({"array"}), ("contains",) if own else ())

    def _least_fields(self) -> Iterator[_Bound]:
        needed = self.required
        if len(needed) > 1:
            yield _Bound(len(needed), False, f"{len(needed)} fields are required", self._place("required"))

    def _most_fields(self) -> Iterator[_Bound]:
        for own, schema in self._with("additionalProperties"):
            if is_false(schema["additionalProperties"]) and not schema.get("patternProperties"):
                allowed = sum(not self.forbids(name) for name in as_mapping(schema.get("properties")))
                text = f"`additionalProperties: false` leaves {allowed}"
                yield _Bound(allowed, False, text, ("additionalProperties",) if own else ())

    def _names_refused(self) -> Iterator[Contradiction]:
        """Required fields that are forbidden, and fields that ask for one."""
        kind = frozenset({"object"})
        needed = self.required
        for name, place in needed.items():
            if self.forbids(name):
                message = f"`{name[:80]}` is required here, and another keyword forbids it"
                yield Contradiction(message, kind, place)
        for own, schema in self._with("dependentRequired"):
            for first, others in as_mapping(schema["dependentRequired"]).items():
                if first in needed or self.forbids(first):
                    continue
                for index, name in enumerate(_names(others)):
                    if self.forbids(name):
                        message = f"`{first[:80]}` needs `{name[:80]}`, and another keyword forbids that"
                        place = ("dependentRequired", first, index) if own else ()
                        yield Contradiction(message, frozenset(), place)


def _is_between_multiples(low: _Bound, high: _Bound, step: Fraction) -> bool:
    if not _is_short(low.value) or not _is_short(high.value):
        return False
    least, most = Fraction(low.value) / step, Fraction(high.value) / step
    first = floor(least) + 1 if low.is_open else ceil(least)
    last = ceil(most) - 1 if high.is_open else floor(most)
    return first > last


def _is_short(number: int | Decimal) -> bool:
    if isinstance(number, int):
        return number.bit_length() < _LONGEST * 3
    return number.is_finite() and abs(number.adjusted()) + len(number.as_tuple().digits) < _LONGEST


def _common_multiple(first: Fraction, second: Fraction) -> Fraction:
    return Fraction(lcm(first.numerator, second.numerator), gcd(first.denominator, second.denominator))


def _forbids(schema: Mapping[str, Any], name: str) -> bool:
    if is_false(as_mapping(schema.get("dependentSchemas")).get(name)):
        return True
    names = schema.get("propertyNames")
    if is_false(names) or (isinstance(names, Mapping) and _refuses_name(names, name)):
        return True
    declared = as_mapping(schema.get("properties"))
    patterns = as_mapping(schema.get("patternProperties"))
    charge(len(patterns))
    covering = [part for pattern, part in patterns.items() if may_match(pattern, name)]
    if name in declared:
        covering.append(declared[name])
    if covering:
        return is_false(declared.get(name)) or any(
            is_false(part) and _does_match(pattern, name) for pattern, part in patterns.items()
        )
    return is_false(schema.get("additionalProperties"))


def _refuses_name(schema: Mapping[str, Any], name: str) -> bool:
    listed, constant = schema.get("enum"), schema.get("const", name)
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", len(name))
    pattern = schema.get("pattern")
    return (
        (isinstance(listed, list) and name not in listed)
        or not is_equal(constant, name)
        or not shortest <= len(name) <= longest
        or (isinstance(pattern, str) and not may_match(pattern, name))
    )


def _does_match(pattern: str, name: str) -> bool:
    try:
        return matches_pattern(pattern, name)
    except UsageError:
        return False


def _names(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
