"""Inputs are checked and completed before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.input_schema import validate_input
from sagas.definition.model import Definition

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
        ({"id": 1}, "input.id: 1 is not of type 'string'"),
        ({"id": "a", "lines": [{"quantity": "x"}]}, "input.lines[0].quantity: 'x' is not of type 'integer'"),
        ([], "input: [] is not of type 'object'"),
    ],
)
def test_mistakes_are_reported_as_messages(given: Any, message: str) -> None:
    assert validate_input(saga(SCHEMA), given)[1] == [message]


def test_without_a_schema_every_input_is_accepted() -> None:
    assert validate_input(saga({}), [1]) == ([1], [])
    assert validate_input(saga({}), None) == ({}, [])


def test_many_mistakes_are_truncated() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert len(validate_input(saga(schema), ["x"] * 100)[1]) == 21
