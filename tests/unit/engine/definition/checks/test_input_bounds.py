"""No input costs 2 seconds of CPU or 200 MiB, whatever the schema is."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from sagas.definition.input_validation import validate_input
from sagas.definition.model import Definition
from sagas.expressions.work_budget import TooComplex, bounded
from sagas.input_limits import MAX_CHECK_STEPS
from sagas.text.exact_json import encode_json
from tests.helpers.call_costs import cost_of
from tests.helpers.nested_lists import nested_list
from tests.helpers.sampling import examples

SECONDS = 2.0
"""Of CPU, on a quiet machine."""

MIB = 200

MAX_BYTES = 2**20

NODE: Any = {
    "$defs": {
        "node": {
            "oneOf": [
                {"type": "string"},
                {"type": "array", "items": {"$ref": "#/$defs/node"}},
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}},
            ]
        }
    },
    "$ref": "#/$defs/node",
}
TWICE: Any = {
    "$defs": {
        "node": {
            "anyOf": [
                {"type": "array", "items": {"$ref": "#/$defs/node"}, "contains": {"const": 0}},
                {"type": "array", "items": {"$ref": "#/$defs/node"}},
            ]
        }
    },
    "$ref": "#/$defs/node",
}

KINDS: Any = {
    "items": {
        "anyOf": [
            {"required": ["kind"], "properties": {"kind": {"const": kind}, "other": {"default": 1}}}
            for kind in range(8)
        ]
    }
}
UNEVALUATED: Any = {
    "items": {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "unevaluatedProperties": False}
}
DYNAMIC: Any = {
    "$defs": {
        "node": {
            "$dynamicAnchor": "node",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"$dynamicRef": "#node"}}],
        }
    },
    "$ref": "#/$defs/node",
}

ORDER: Any = {
    "type": "object",
    "additionalProperties": False,
    "required": ["sku", "quantity", "price"],
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4,8}$"},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 1000},
        "price": {"type": "number", "minimum": 0},
        "currency": {"enum": ["EUR", "USD"], "default": "EUR"},
        "gift": {"type": "boolean", "default": False},
        "address": {"$ref": "#/$defs/address"},
    },
}
ADDRESS: Any = {
    "type": "object",
    "required": ["street", "zip"],
    "properties": {"street": {"type": "string", "maxLength": 80}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
}
ORDERS: Any = {
    "type": "object",
    "properties": {"orders": {"type": "array", "items": {"$ref": "#/$defs/order"}}},
    "$defs": {"order": ORDER, "address": ADDRESS},
}


def order(number: int, *, with_address: bool) -> Any:
    row = {"sku": f"ABC-{10_000 + number}", "quantity": 2, "price": Decimal("9.99")}
    return {**row, "address": {"street": "High Street 1", "zip": "12345"}} if with_address else row


def large() -> Any:
    return [[number, "x" * 20] for number in range(30_000)]


def wide() -> Any:
    return {f"k{number}": number for number in range(50_000)}


def a_definition(schema: Any) -> Definition:
    return Definition("bounds", (), input=schema)


def problems_in_bounds(schema: Any, value: Any) -> list[str]:
    """The problems of an input, whose check stays within the bounds."""
    cost = cost_of(validate_input, a_definition(schema), value)
    assert cost.seconds < SECONDS
    assert cost.mib < MIB
    return cost.result[1]


def json_bytes(value: Any) -> int:
    """The size of a value as JSON, without the time of encoding what it has many times."""
    sizes: dict[int, int] = {}

    def size(part: Any) -> int:
        if not isinstance(part, dict | list):
            return len(encode_json(part))
        if id(part) not in sizes:
            names, parts = (part, part.values()) if isinstance(part, dict) else ((), part)
            sizes[id(part)] = 2 + sum(len(name) + 4 for name in names) + sum(size(each) + 1 for each in parts)
        return sizes[id(part)]

    return size(value)


@pytest.mark.sampled(keep=8)
@pytest.mark.parametrize(
    ("schema", "make"),
    [
        (NODE, lambda: [[1] * 10] * 4_000),
        (NODE, lambda: [["x"] * 10] * 4_000 + [1]),
        (TWICE, lambda: nested_list(90)),
        ({"anyOf": [{"maxItems": 0}] * 500}, large),
        ({"anyOf": [False] * 500}, large),
        ({"anyOf": [{"items": False}] * 500}, large),
        ({"anyOf": [{"not": {}}] * 500}, large),
        ({"anyOf": [{"enum": [number]} for number in range(500)]}, large),
        ({"anyOf": [{"const": number} for number in range(500)]}, lambda: "y" * 1_000_000),
        ({"anyOf": [{"unevaluatedItems": False}] * 300}, lambda: [large()]),
        ({"anyOf": [{"additionalProperties": False}] * 500}, wide),
        ({"anyOf": [{"contains": False}] * 100}, large),
        ({"allOf": [{"uniqueItems": True}] * 200}, large),
        ({"allOf": [{"contains": {"const": -number}} for number in range(50)]}, lambda: ["x"] * 50_000),
        ({"items": {"properties": {"a": {"default": 1}}}}, lambda: [{} for _ in range(100_000)]),
        ({"items": {"properties": {"a": {"default": ["x" * 10] * 100}}}}, lambda: [{} for _ in range(200_000)]),
        (KINDS, lambda: [{"kind": 9} for _ in range(80_000)]),
        ({"items": {"anyOf": [False] * 500}}, large),
        ({"anyOf": [{"contains": False}] * 100}, lambda: large()[:20_000]),
        (UNEVALUATED, lambda: [{"a": 1, "b": 2} for _ in range(60_000)]),
        (DYNAMIC, lambda: [["x"] * 10] * 20_000 + [1]),
    ],
)
def test_a_hostile_input_is_decided_about_in_bounds(schema: Any, make: Callable[[], Any]) -> None:
    problems_in_bounds(schema, make())


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("with_address", [True, False])
def test_a_megabyte_of_ordinary_orders_is_accepted(with_address: bool) -> None:
    size = len(encode_json(order(0, with_address=with_address))) + 1
    orders = {"orders": [order(number, with_address=with_address) for number in range(2**20 // size)]}
    with bounded() as budget:
        value, problems = validate_input(a_definition(ORDERS), orders)
    assert problems == []
    assert value["orders"][-1]["currency"] == "EUR"
    assert budget.remaining > MAX_CHECK_STEPS // 10


def test_the_one_wrong_order_of_many_is_named() -> None:
    orders = {"orders": [order(number, with_address=True) for number in range(4_000)]}
    orders["orders"][-1]["quantity"] = 0
    assert problems_in_bounds(ORDERS, orders) == ["input.orders[3999].quantity: 0 is less than 1"]


SELF: Any = {
    "$defs": {"node": {"anyOf": [{"type": "array"}, {"$ref": "#/$defs/node"}]}},
    "$ref": "#/$defs/node",
}
DYNAMIC_SELF: Any = {
    "$defs": {"node": {"$dynamicAnchor": "node", "anyOf": [{"type": "array"}, {"$dynamicRef": "#node"}]}},
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize("schema", [SELF, DYNAMIC_SELF])
def test_a_schema_that_contains_itself_is_refused_wherever_the_stack_ends(schema: Any) -> None:
    """The maps in Rust under jsonschema panic, with an error that is not an Exception, if it ends in a comparison."""

    def deeper(levels: int) -> list[str]:
        return deeper(levels - 1) if levels else validate_input(a_definition(schema), "x")[1]

    for levels in range(40):
        assert deeper(levels) == ["input: the schema contains itself without end; correct its `$ref`"]


def keyword(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        st.fixed_dictionaries({"anyOf": several}),
        st.fixed_dictionaries({"oneOf": several}),
        st.fixed_dictionaries({"allOf": several}),
        st.fixed_dictionaries({"items": inner, "maxItems": st.integers(0, 3)}),
        st.fixed_dictionaries({"prefixItems": several, "items": inner}),
        st.fixed_dictionaries({"contains": inner, "minContains": st.integers(0, 3)}),
        st.fixed_dictionaries({"additionalProperties": inner, "maxProperties": st.integers(0, 3)}),
        st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from("abc"), inner), "default": st.just({})}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner, "else": inner}),
        st.fixed_dictionaries({"unevaluatedItems": inner, "uniqueItems": st.booleans()}),
        st.fixed_dictionaries({"unevaluatedProperties": inner}),
    )


LEAVES = st.sampled_from(
    [
        {"$ref": "#/$defs/node"},
        {"type": "string", "pattern": "x+y"},
        {"enum": ["x", [1], {"a": 1}]},
        {"const": "y" * 1000},
        {"type": "array"},
        {"minLength": 3},
        False,
    ]
)
SCHEMAS = st.recursive(LEAVES, keyword, max_leaves=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["x", "x" * 10_000, 1, None]),
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(1, 40)).map(lambda pair: [pair[0]] * pair[1]),
        st.tuples(inner, st.integers(1, 40)).map(lambda pair: {f"{name}": pair[0] for name in range(pair[1])}),
        st.dictionaries(st.sampled_from("abc"), inner),
    ),
    max_leaves=6,
)


@given(schema=SCHEMAS, value=VALUES)
@examples(20, 1_000, suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large))
def test_any_schema_decides_about_any_input_in_bounds(schema: Any, value: Any) -> None:
    recursive = {"$defs": {"node": schema}, "items": {"$ref": "#/$defs/node"}, "anyOf": [schema, {"type": "null"}]}
    assume(json_bytes([value, value]) <= MAX_BYTES)
    problems_in_bounds(recursive, [value, value])


def test_inputs_of_one_context_share_its_steps() -> None:
    definition = a_definition({"items": {"type": "string"}})
    with bounded(1_000) as budget:
        assert validate_input(definition, ["x"] * 600)[1] == []
        assert 350 < budget.remaining < 450
        with pytest.raises(TooComplex):
            validate_input(definition, ["x"] * 800)
    assert validate_input(definition, ["x"] * (MAX_CHECK_STEPS // 2))[1] == []


def test_an_alternative_that_may_be_meant_is_still_named() -> None:
    schema = {"oneOf": [{"type": "string"}, {"type": "object", "required": ["name"]}]}
    assert validate_input(a_definition(schema), {"a": 1})[1] == ["input needs `name`"]
    assert validate_input(a_definition(schema), 1)[1] == ["input: 1 is not a string or a mapping"]
    both = {"oneOf": [{"type": "integer"}, {"minimum": 0}]}
    assert validate_input(a_definition(both), 1)[1] == ["input: 1 fits more than one part of `oneOf`"]
