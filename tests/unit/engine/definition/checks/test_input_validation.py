"""Inputs are checked and completed before anything starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from sagas.definition.input_validation import validate_input
from sagas.definition.model import Definition
from sagas.input_limits import MAX_INPUT_VALUES

SCHEMA = {
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "count": {"type": "integer", "default": 3},
        "lines": {
            "type": "array",
            "default": [],
            "items": {"type": "object", "properties": {"quantity": {"type": "integer", "default": 1}}},
        },
        "address": {"$ref": "#/$defs/address"},
    },
    "$defs": {"address": {"type": "object", "properties": {"country": {"default": "DE"}}}},
}


def saga(schema: Any) -> Definition:
    return Definition("shop", (), input=schema)


def test_defaults_are_filled_in_everywhere() -> None:
    given = {"id": "a", "lines": [{}, {"quantity": 2}], "address": {}}
    filled, sentences = validate_input(saga(SCHEMA), given)
    assert sentences == []
    assert filled == {
        "id": "a",
        "count": 3,
        "lines": [{"quantity": 1}, {"quantity": 2}],
        "address": {"country": "DE"},
    }
    assert given == {"id": "a", "lines": [{}, {"quantity": 2}], "address": {}}


def test_a_default_is_a_copy() -> None:
    filled, _ = validate_input(saga(SCHEMA), {"id": "a"})
    filled["lines"].append(1)
    assert validate_input(saga(SCHEMA), {"id": "a"})[0]["lines"] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "input needs `id`"),
        (None, "input needs `id`"),
        ({"id": 1}, "input.id: 1 is not a string"),
        ({"id": "a", "lines": [{"quantity": "x"}]}, 'input.lines[0].quantity: "x" is not a whole number'),
        ([], "input: [] is not a mapping"),
        ({"id": "a", "cuont": 1}, "input has the unknown field `cuont`; did you mean count?"),
        ({"id": "a", "x": 1, "adress": {}}, "input has the unknown fields `x`, `adress`; did you mean address?"),
    ],
)
def test_mistakes_are_reported_as_messages(given: Any, message: str) -> None:
    assert validate_input(saga(SCHEMA), given)[1] == [message]


def test_a_needed_field_may_have_another_name() -> None:
    schema = {"required": ["amount"], "properties": {"amount": {"type": "number"}, "note": {}}}
    assert validate_input(saga(schema), {"amonut": 1, "note": ""})[1] == [
        "input needs `amount`, and has `amonut`; did you mean amount?"
    ]
    assert validate_input(saga(schema), {"note": ""})[1] == ["input needs `amount`"]


def test_each_missing_field_is_named() -> None:
    schema = {"type": "object", "required": ["sku", "a", "b"], "properties": {"sku": {}, "a": {}, "b": {}}}
    assert validate_input(saga(schema), {"a": 1})[1] == ["input needs `sku` and `b`"]
    assert validate_input(saga(schema), {})[1] == ["input needs `sku`, `a` and `b`"]


def test_without_a_schema_every_input_is_accepted() -> None:
    assert validate_input(saga({}), [1]) == ([1], [])
    assert validate_input(saga({}), None) == ({}, [])


def test_many_mistakes_are_truncated() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert len(validate_input(saga(schema), ["x"] * 100)[1]) == 21


def nested(levels: int, make: Callable[[Any], Any], inner: Any = 1) -> Any:
    for _ in range(levels):
        inner = make(inner)
    return inner


RECURSIVE = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"anyOf": [{"type": "integer"}, {"items": {"$ref": "#/$defs/a"}}] * 2}},
}
LAUGHS = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
MANY = {f"k{n}": 1 for n in range(50_000)}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [{"a": n} for n in range(50_000)]),
        (RECURSIVE, nested(90, lambda inner: [inner], "x")),
        ({"$ref": "#"}, {}),
        ({"allOf": [{"$ref": "#"}]}, {}),
        ({"$ref": "#/$defs/a0", "$defs": {**LAUGHS, "a40": {}}}, {}),
        ({"unevaluatedProperties": {"type": "integer"}}, MANY),
        ({"unevaluatedItems": {"type": "integer"}, "prefixItems": [{}]}, [1] * 50_000),
        ({"pattern": "^(a+)+$"}, "a" * 100_000 + "b"),
        ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 50_000 + "b": 1}),
        ({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}}},
         {"a": "a" * 100 + "b"}),
        ({"items": {"pattern": "(.{1,30}){1,30}$"}}, ["x" * 6_300] * 300),
        ({"format": "regex"}, "(" * 50_000),
        ({"items": {"enum": [f"sku-{n}" for n in range(2_000)]}}, ["sku-1999"] * 20_000),
    ],
)  # fmt: skip
def test_no_input_stalls_its_validation(schema: Any, value: Any) -> None:
    before = time.thread_time()
    validate_input(saga(schema), value)
    assert time.thread_time() - before < 15


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0] * (MAX_INPUT_VALUES + 1), "input: it has more than 250,000 values"),
        (nested(101, lambda inner: {"a": inner}), "input: it is nested deeper than 100 levels"),
        ([10**5_000], "input: it has an integer of more than 4,000 digits"),
        ([float("nan")], "input: nan is not a JSON number"),
        ([float("-inf")], "input: -inf is not a JSON number"),
    ],
)
def test_an_input_has_a_limited_size(value: Any, message: str) -> None:
    assert validate_input(saga({}), value)[1] == [message]


@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        ({"uniqueItems": True}, [1, 1.0], False),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, {"a": 2}], True),
        ({"enum": [1, "a", None, {"a": [1]}]}, {"a": [1.0]}, True),
        ({"enum": [1, "a", None]}, True, False),
        ({"pattern": "b$"}, "ab", True),
        ({"pattern": "b$"}, "ab\n", False),
        ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, {"x-a": 1}, True),
        ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, {"x-a": ""}, False),
        ({"patternProperties": {"^x-": {}}, "additionalProperties": False}, {"y": 1}, False),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, True),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"b": 1}, False),
        ({"multipleOf": 0.01}, 10**309, True),
        ({"multipleOf": 0.03}, 10**309, False),
        ({"multipleOf": 0.01}, 19.99, True),
        ({"multipleOf": 0.01}, 19.999, False),
        ({"multipleOf": 10**309}, 0.5, False),
        ({"multipleOf": 5e-324}, 1e308, True),
        ({"multipleOf": 3}, 9.0, True),
        ({"multipleOf": 3}, 10, False),
        ({"multipleOf": 3}, True, True),
        ({"multipleOf": 3}, "10", True),
        ({"multipleOf": 0}, 10, False),
        ({"$ref": "#item", "$defs": {"a": {"$anchor": "item", "type": "string"}}}, "a", True),
        ({"$ref": "https://example.com/a.json"}, 1, False),
        ({"$ref": "file:///etc/passwd"}, 1, False),
    ],
)
def test_the_bounded_keywords_keep_their_meaning(schema: Any, value: Any, valid: bool) -> None:
    assert (validate_input(saga(schema), value)[1] == []) is valid


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "^[0-9]+$"}, "4111 hush"),
        ({"enum": ["a", "b"]}, "4111 hush"),
        ({"type": "integer"}, "4111 hush"),
        ({"maxLength": 3}, "4111 hush"),
        ({"additionalProperties": False}, {"4111 hush": 1}),
        ({"uniqueItems": True}, ["4111 hush", "4111 hush"]),
    ],
)
def test_a_message_does_not_quote_a_sensitive_value(schema: dict[str, Any], value: Any) -> None:
    card = {**schema, "x-sensitive": True}
    for whole in ({"properties": {"card": card}}, {"oneOf": [{"properties": {"card": card}}, False]}):
        [message] = validate_input(saga(whole), {"card": value})[1]
        assert "hush" not in message
        assert message.startswith("input")


def test_an_unknown_name_next_to_a_sensitive_property_is_named() -> None:
    schema = {"additionalProperties": False, "properties": {"card": {"x-sensitive": True}}}
    [message] = validate_input(saga(schema), {"crad": "4111 hush"})[1]
    assert message == "input has the unknown field `crad`; did you mean card?"
    assert "hush" not in message


def test_keys_that_are_no_texts_have_their_names_in_json() -> None:
    closed = {"type": "object", "properties": {"1": {"type": "string"}}, "additionalProperties": False}
    for schema in (closed, {"type": "object", "propertyNames": {"pattern": "^[0-9]$"}}, {}):
        assert validate_input(saga(schema), {1: "x"}) == ({"1": "x"}, [])
        assert validate_input(saga(schema), {None: "x"})[1] == ["input: the key None of an object is not a text"]
    assert validate_input(saga(closed), {2: "x"})[1] != []
