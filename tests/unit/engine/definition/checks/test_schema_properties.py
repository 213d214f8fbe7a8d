"""Random schemas: the validator agrees with jsonschema and with exact arithmetic, and masking goes where it goes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sagas.definition.input_validation import validate_input
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import ProjectContext
from sagas.definition.sensitivity import masked
from sagas.text.exact_json import decode_json, encode_json
from tests.helpers.sampling import examples
from tests.unit.engine.definition.mistake import ACTIONS

NAMES = st.sampled_from("abc")
TEXTS = st.sampled_from(["", "a", "ab", "b", "\u00e9", "abc"])
VALUES = st.recursive(
    st.none() | st.booleans() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def schemas() -> st.SearchStrategy[Any]:
    return st.recursive(
        st.booleans() | st.fixed_dictionaries({}, optional={"type": st.sampled_from(["string", "object", "array"])}),
        _combined,
        max_leaves=8,
    )


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some, listed = st.dictionaries(NAMES, inner, max_size=2), st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": some,
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": listed,
            "contains": inner,
            "uniqueItems": st.booleans(),
            "allOf": listed,
            "anyOf": listed,
            "oneOf": listed,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": some,
            "propertyNames": inner,
            "pattern": st.sampled_from(["^a", "b$", "a|b"]),
            "enum": st.lists(VALUES, max_size=3),
            "const": VALUES,
            "minLength": st.integers(0, 2),
            "minContains": st.integers(0, 2),
            "maxContains": st.integers(0, 2),
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
            "unevaluatedItems": inner,
            "unevaluatedProperties": inner,
            "maxItems": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
        },
    )


def problems(schema: Any, value: Any) -> list[str]:
    return validate_input(Definition("shop", (), input=schema), value)[1]


@examples(100, 3_000)
@given(schemas(), VALUES)
def test_without_numbers_the_verdict_is_that_of_jsonschema(schema: Any, value: Any) -> None:
    value = {} if value is None else value
    assert (problems(schema, value) == []) is Draft202012Validator(schema).is_valid(value)


NUMBERS = st.builds(
    lambda digits, exponent, form: form(Decimal(digits).scaleb(exponent)),
    st.integers(-(10**20), 10**20) | st.integers(-12, 12),
    st.integers(-20, 20),
    st.sampled_from([str, lambda number: f"{number:e}", lambda number: f"{number:f}"]),
)
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "multipleOf": lambda value, limit: (value / limit).denominator == 1,
    "const": operator.eq,
    "enum": operator.eq,
}


@examples(200, 5_000)
@given(st.sampled_from(sorted(COMPARISONS)), NUMBERS, NUMBERS)
def test_numbers_are_compared_as_fractions(keyword: str, limit: str, value: str) -> None:
    if keyword == "multipleOf":
        limit = limit.lstrip("-") if Fraction(limit) else "1"
    written = f"[{limit}]" if keyword == "enum" else limit
    valid = problems(decode_json(f'{{"{keyword}": {written}}}'), decode_json(value)) == []
    assert valid is COMPARISONS[keyword](Fraction(value), Fraction(limit))


@pytest.mark.parametrize("literal", ["12", "12.0", "1.2e1", "120e-1", "12.000"])
@examples(20, 600)
@given(st.data())
def test_a_whole_number_is_an_integer_wherever_the_schema_says_so(literal: str, data: st.DataObject) -> None:
    schema, value, path = data.draw(nested({"type": "integer"}, decode_json(literal)))
    filled, messages = validate_input(Definition("shop", (), input=schema), value)
    assert messages == []
    for part in path:
        filled = filled[part]
    assert type(filled) is int
    assert filled == 12


def nested(schema: Any, value: Any) -> st.SearchStrategy[tuple[Any, Any, tuple[str | int, ...]]]:
    """Schemas in which ``schema`` describes ``value``, the whole value, and the path to it."""
    return st.lists(st.sampled_from(sorted(WRAPPERS)), max_size=5).map(lambda names: _wrap(names, schema, value))


def _wrap(names: list[str], schema: Any, value: Any) -> tuple[Any, Any, tuple[str | int, ...]]:
    path: tuple[str | int, ...] = ()
    definitions: dict[str, Any] = {}
    for name in names:
        schema, value, step = WRAPPERS[name](schema, value, definitions)
        path = (*step, *path)
    return {"$defs": definitions, "type": "object", "properties": {"top": schema}}, {"top": value}, ("top", *path)


def _referenced(definition: Callable[[str], Mapping[str, Any]], reference: str) -> Callable[..., Any]:
    def wrap(schema: Any, value: Any, definitions: dict[str, Any]) -> Any:
        name = f"d{len(definitions)}"
        if definitions and "$id" in definition(name):  # inside it, the references to the others would be relative to it
            return schema, value, ()
        definitions[name] = {**definition(name), "allOf": [schema]}
        keyword = "$dynamicRef" if "$dynamicAnchor" in definitions[name] else "$ref"
        return {keyword: reference.format(name)}, value, ()

    return wrap


def _same(make: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda schema, value, _: (make(schema), value, ())


def _property(make: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda schema, value, _: (make(schema), {"p": value}, ("p",))


def _element(make: Callable[[Any], Any], at: int = 0) -> Callable[..., Any]:
    return lambda schema, value, _: (make(schema), [*([None] * at), value], (at,))


WRAPPERS: Mapping[str, Callable[..., Any]] = {
    "$ref": _referenced(lambda name: {}, "#/$defs/{}"),
    "$anchor": _referenced(lambda name: {"$anchor": name}, "#{}"),
    "$dynamicAnchor": _referenced(lambda name: {"$dynamicAnchor": name}, "#{}"),
    "$id": _referenced(lambda name: {"$id": f"https://shop.example/{name}"}, "https://shop.example/{}"),
    "allOf": _same(lambda schema: {"allOf": [{}, schema]}),
    "anyOf": _same(lambda schema: {"anyOf": [{"const": "other"}, schema]}),
    "oneOf": _same(lambda schema: {"oneOf": [{"const": "other"}, schema]}),
    "then": _same(lambda schema: {"if": {"not": {"const": "other"}}, "then": schema}),
    "else": _same(lambda schema: {"if": {"const": "other"}, "else": schema}),
    "properties": _property(lambda schema: {"properties": {"p": schema}}),
    "patternProperties": _property(lambda schema: {"patternProperties": {"^p": schema}}),
    "additionalProperties": _property(lambda schema: {"properties": {"q": {}}, "additionalProperties": schema}),
    "unevaluatedProperties": _property(lambda schema: {"properties": {"q": {}}, "unevaluatedProperties": schema}),
    "dependentSchemas": _property(lambda schema: {"dependentSchemas": {"p": {"properties": {"p": schema}}}}),
    "items": _element(lambda schema: {"items": schema}),
    "prefixItems": _element(lambda schema: {"prefixItems": [schema], "items": {"type": "string"}}),
    "items after prefixItems": _element(lambda schema: {"prefixItems": [{}], "items": schema}, at=1),
    "unevaluatedItems": _element(lambda schema: {"unevaluatedItems": schema}),
}

SECRET = "4111-hush-1111"
HIDING: Mapping[str, Callable[..., Any]] = {
    **WRAPPERS,
    "contains": _element(lambda schema: {"contains": {"allOf": [schema]}}),
    "not": _same(lambda schema: {"not": {"not": schema}}),
    "if": _same(lambda schema: {"if": schema, "else": False}),
    "propertyNames": lambda schema, value, _: (
        ({"propertyNames": schema}, {value: 1}, ())
        if isinstance(value, str)
        else ({"properties": {"p": schema}}, {"p": value}, ("p",))
    ),
}


@examples(80, 3_000)
@given(st.lists(st.sampled_from(sorted(HIDING)), max_size=5), st.booleans())
def test_a_sensitive_value_is_refused_in_labels_and_hidden_in_messages(names: list[str], valid: bool) -> None:
    schema: Any = {"type": "string", "x-sensitive": True, **({} if valid else {"maxLength": 3})}
    value: Any = SECRET
    definitions: dict[str, Any] = {}
    for name in names:
        schema, value, _ = HIDING[name](schema, value, definitions)
    whole = {"$defs": definitions, "type": "object", "properties": {"top": schema}}
    text = (
        f"saga: shop\ninput: {encode_json(whole).decode()}\nlabels: {{all: '${{{{ string(input.top) }}}}'}}\n"
        "steps:\n  - {id: a, uses: shop.book, pivot: true}\n"
    )
    codes = {diagnostic.code for diagnostic in parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS))[1]}
    assert "SAGA117" in codes
    messages = problems(whole, {"top": value})
    assert (messages == []) is valid
    assert not any("hush" in message for message in messages)
    assert b"hush" not in encode_json(masked(whole, {"top": value, "other": 1}))
    assert masked(whole, {"other": 1}) == {"other": 1}
