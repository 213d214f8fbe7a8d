"""Defaults are filled in where exactly one schema applies, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.input_validation import validate_input
from sagas.definition.model import Definition

KIND = {"required": ["kind"], "properties": {"kind": {"type": "string"}}}
CARD = {"required": ["kind", "months"], "properties": {"kind": {"const": "card"}, "months": {"default": 1}}}
BANK = {"required": ["kind"], "properties": {"kind": {"const": "bank"}, "days": {"default": 3}}}
ONE = {"properties": {"n": {"default": 1}}}
TWO = {"properties": {"n": {"default": 2}}}


@pytest.mark.parametrize(
    ("schema", "given", "filled"),
    [
        ({"allOf": [ONE]}, {}, {"n": 1}),
        ({"allOf": [ONE, ONE]}, {}, {"n": 1}),
        ({"allOf": [ONE, TWO]}, {}, {}),
        ({"$ref": "#one", "$defs": {"one": {"$anchor": "one", **ONE}}}, {}, {"n": 1}),
        ({"properties": {"n": {"allOf": [{"default": 1}]}}}, {}, {"n": 1}),
        ({"properties": {"n": {"$ref": "#/$defs/n", "default": 3}}, "$defs": {"n": {"default": 1}}}, {}, {"n": 3}),
        ({"if": KIND, "then": ONE, "else": TWO}, {"kind": "a"}, {"kind": "a", "n": 1}),
        ({"if": KIND, "then": ONE, "else": TWO}, {}, {"n": 2}),
        ({"if": {"not": {"required": ["n"]}}, "then": ONE, "else": TWO}, {}, {"n": 1}),
        ({"properties": {"kind": {"default": "a"}}, "if": KIND, "then": ONE}, {}, {"kind": "a", "n": 1}),
        ({"oneOf": [CARD, BANK]}, {"kind": "card"}, {"kind": "card", "months": 1}),
        ({"oneOf": [CARD, BANK]}, {"kind": "bank"}, {"kind": "bank", "days": 3}),
        ({"anyOf": [CARD, BANK]}, {"kind": "bank"}, {"kind": "bank", "days": 3}),
        ({"anyOf": [ONE, TWO]}, {}, {}),
        ({"anyOf": [ONE, ONE]}, {}, {}),
        ({"dependentSchemas": {"a": ONE}}, {"a": 1}, {"a": 1, "n": 1}),
        ({"dependentSchemas": {"a": ONE}}, {}, {}),
        ({"not": {"required": ["x"], **ONE}}, {}, {}),
        ({"prefixItems": [{}], "items": ONE}, [{}, {}], [{}, {"n": 1}]),
        ({"prefixItems": [ONE], "items": TWO}, [{}, {}], [{"n": 1}, {"n": 2}]),
        ({"contains": ONE}, [{}], [{}]),
        ({"additionalProperties": ONE}, {"a": {}}, {"a": {"n": 1}}),
        ({"properties": {"a": {}}, "additionalProperties": ONE}, {"a": {}}, {"a": {}}),
        ({"patternProperties": {"^a": ONE}}, {"ab": {}, "b": {}}, {"ab": {"n": 1}, "b": {}}),
        ({"properties": {"a": {}}, "unevaluatedProperties": ONE}, {"a": {}, "b": {}}, {"a": {}, "b": {"n": 1}}),
        ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": ONE}, {"a": {}}, {"a": {}}),
        ({"anyOf": [{"prefixItems": [{}]}, False], "unevaluatedItems": ONE}, [{}, {}], [{}, {"n": 1}]),
        ({"properties": {"a": {"default": {}, **ONE}}}, {}, {"a": {"n": 1}}),
        ({"properties": {"n": {"type": "integer", "default": 12.0}}}, {}, {"n": 12}),
    ],
)  # fmt: skip
def test_defaults(schema: Any, given: Any, filled: Any) -> None:
    assert validate_input(Definition("shop", (), input=schema), given) == (filled, [])


def test_a_default_never_hides_that_two_alternatives_fit() -> None:
    alternatives = [{"properties": {"kind": {"const": name, "default": name}}} for name in ("card", "bank")]
    schema = {"oneOf": alternatives}
    filled, messages = validate_input(Definition("shop", (), input=schema), {})
    assert (filled, messages) == ({}, ["input: {} fits more than one part of `oneOf`"])
