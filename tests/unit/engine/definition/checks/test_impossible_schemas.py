"""A schema that is reported impossible refuses every value of the types that the report is about."""

from __future__ import annotations

import time
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from sagas.definition.checks.impossible_schemas import Impossible, impossible_parts
from sagas.definition.checks.input_schema import schema_problems
from sagas.definition.schema_nodes import dynamic_anchors, root_node, subschemas
from sagas.definition.schema_validation import CompiledSchema, canonical_schema
from sagas.text.exact_numbers import is_whole
from tests.helpers.sampling import examples

NUMBERS = [*range(-1, 7), Decimal("0.5"), Decimal("1.5"), Decimal("2.0"), Decimal("3.5")]
TEXTS = ["", "a", "b", "ab", "abc", "abcd"]
SCALARS = [None, True, False, *NUMBERS, *TEXTS]
LISTS = [list(items) for size in range(4) for items in product([1, "a", None, 4], repeat=size)]
OBJECTS = [
    {name: value for name, value in zip("abc", values, strict=True) if value is not ...}
    for values in product([..., *SCALARS[3:9], "ab"], [..., 1, "ab", None], [..., 2])
]
VALUES = [*SCALARS, *LISTS, *OBJECTS]

counts = st.integers(0, 3)
names = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3, unique=True)
kinds = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
listed = st.lists(st.sampled_from(SCALARS), min_size=1, max_size=3, unique_by=lambda value: (type(value), value))
limits = st.sampled_from(NUMBERS)


def strategies(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    parts = st.lists(inner, min_size=1, max_size=2)
    return {
        "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
        "enum": listed,
        "const": st.sampled_from(SCALARS),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), limits),
        "multipleOf": st.sampled_from([2, 3, Decimal("0.5")]),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties"), counts),
        **dict.fromkeys(("maxProperties", "minContains", "maxContains"), counts),
        "pattern": st.sampled_from(["^a", "b$"]),
        "uniqueItems": st.booleans(),
        "required": names,
        "dependentRequired": st.dictionaries(st.sampled_from("abc"), names, max_size=2),
        "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "[bc]"]), inner, max_size=1),
        "propertyNames": inner,
        "dependentSchemas": st.dictionaries(st.sampled_from("abc"), inner, max_size=1),
        "additionalProperties": inner,
        "items": inner,
        "prefixItems": parts,
        "contains": inner,
        "not": inner,
        "allOf": parts,
        "anyOf": parts,
        "oneOf": parts,
    }


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies(inner))


def single(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of([st.fixed_dictionaries({name: value}) for name, value in strategies(inner).items()])


REFERENCE = {"$ref": "#/$defs/n"}
leaves = st.booleans() | keywords(st.booleans())
small = single(st.booleans() | single(st.booleans()))
merged = st.fixed_dictionaries({"allOf": st.lists(small | st.just(REFERENCE), min_size=2, max_size=4)})
SCHEMAS = st.fixed_dictionaries(
    {
        "$defs": st.fixed_dictionaries({"n": st.booleans() | keywords(st.booleans()) | small}),
        "properties": st.fixed_dictionaries({"a": keywords(leaves) | merged | merged}),
    }
)


def kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | Decimal():
            return "integer" if is_whole(value) else "fraction"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def reports(schema: Any) -> list[Impossible]:
    root = root_node(schema)
    return impossible_parts(list(subschemas(root)), schema, dynamic_anchors(root))


@examples(80, 2_500, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS)
def test_no_value_fits_what_is_reported_once(schema: Any) -> None:
    impossibilities = reports(schema)
    places = [(impossible.place, impossible.below, impossible.message) for impossible in impossibilities]
    assert len(set(places)) == len(places)
    if not impossibilities:
        return
    compiled = CompiledSchema(canonical_schema(schema))
    nodes = {path: node for node, path in subschemas(compiled.root)}
    for impossible in impossibilities:
        for value in (value for value in VALUES if kind_of(value) in impossible.kinds):
            for key in reversed(impossible.below):
                value = {key: value} if isinstance(key, str) else [value]
            assert not compiled.fits(nodes[impossible.schema], value), (impossible, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": ["string", "null"]}, {"type": ["null", "integer"]}]},
        {"type": "string", "minimum": 5, "maximum": 3},
        {"minContains": 3, "maxContains": 1},
        {"allOf": [{"contains": {"const": 1}, "maxContains": 1}, {"contains": {"const": 2}, "minContains": 2}]},
        {"enum": ["7", 7], "minimum": 5},
        {"enum": [Decimal("1.0")], "type": "integer"},
        {"multipleOf": 2, "minimum": 3, "maximum": 4},
        {"type": "number", "minimum": Decimal("1.2"), "maximum": Decimal("1.8")},
        {"properties": {"a": False}, "dependentRequired": {"a": ["b"]}},
        {"properties": {"a": False, "b": False}, "dependentRequired": {"a": ["b"]}},
        {"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": False}}]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}], "type": "string"},
        {"not": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
        {"required": ["a"], "patternProperties": {"^a": {}}, "additionalProperties": False},
        {"prefixItems": [{}, {}], "items": False, "minItems": 2},
    ],
)
def test_what_a_value_fits_is_not_reported(schema: Any) -> None:
    assert reports(schema) == []


def wide(width: int) -> dict[str, Any]:
    return {"properties": {"a": {"allOf": [{"minimum": number} for number in range(width)]}}}


def chain(length: int) -> dict[str, Any]:
    steps = {f"n{at}": {"allOf": [{"$ref": f"#/$defs/n{(at + 1) % length}"}] * 2} for at in range(length)}
    return {"$defs": steps, "$ref": "#/$defs/n0"}


HOSTILE = {
    "a wide allOf": wide(20_000),
    "a cycle of references": chain(1_500),
    "a schema that is itself": {"$ref": "#", "allOf": [{"$ref": "#"}]},
    "many names in many parts": {
        "allOf": [
            {"properties": {f"p{at}": {"minimum": part} for at in range(150)}, "additionalProperties": False}
            for part in range(150)
        ]
    },
    "long enums in many parts": {"allOf": [{"enum": list(range(part, part + 400))} for part in range(150)]},
    "patterns": {
        "required": [f"p{at}" for at in range(1_000)],
        "patternProperties": {f"^(p|q){at}$": {} for at in range(1_000)},
        "additionalProperties": False,
    },
    "an enum that is dear to check": {
        "enum": [{"k": [number] * 30} for number in range(300)],
        "anyOf": [{"properties": {"k": {"items": {"minimum": number}}}} for number in range(1_000, 1_100)],
    },
    "numbers of many digits": {
        "allOf": [{"multipleOf": 10**1_000 + number * 2 + 1} for number in range(100)],
        "minimum": 1,
        "maximum": 10**1_500,
        "type": "integer",
    },
}


@pytest.mark.sampled(keep=4)
@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_schema_takes_bounded_time(schema: Any) -> None:
    started = time.thread_time()
    list(schema_problems(schema))
    assert time.thread_time() - started < 10
