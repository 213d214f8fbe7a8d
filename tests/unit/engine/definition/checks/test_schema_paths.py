"""Paths that the input's schema declares, and the sensitive ones among them."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.input_schema import UndeclaredProperty, both, schema_at
from sagas.definition.input_validation import validate_input
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import ProjectContext
from sagas.definition.sensitivity import is_sensitive
from sagas.expressions import ANY_ELEMENT
from sagas.simulation import sample_input
from tests.unit.engine.definition.mistake import ACTIONS

TEXT = {"type": "string"}
ORDER = {
    "type": "object",
    "required": ["id", "to"],
    "properties": {"id": TEXT, "lines": {"type": "array", "items": {"required": ["sku"], "properties": {"n": {}}}}},
}


def diagnostics_of(schema: str, expression: str) -> list[tuple[str, str | None]]:
    text = (
        f"saga: shop\ninput: {schema}\nsteps:\n  - id: a\n    uses: shop.reserve\n    pivot: true\n"
        f'    with: {{sku: "${{{{ {expression} }}}}"}}\n'
    )
    return [
        (diagnostic.code, diagnostic.help) for diagnostic in parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS))[1]
    ]


@pytest.mark.parametrize(
    ("schema", "expression"),
    [
        ("{type: object, required: [a, b], properties: {b: {type: string}}}", "input.a"),
        ("{required: [o], properties: {o: {type: object, required: [a], properties: {b: {}}}}}", "input.o.a.deeper"),
        (
            "{required: [l], properties: {l: {type: array, items: {required: [a], properties: {b: {}}}}}}",
            "input.l.map(x, x.a)[0]",
        ),
        ("{$ref: '#/$defs/o', required: [b], $defs: {o: {properties: {a: {}}}}}", "input.b"),
        (
            "{$ref: '#/$defs/o', required: [a, b], properties: {b: {}}, $defs: {o: {properties: {a: {}}}}}",
            "input.a + input.b",
        ),
        ("{properties: {b: {}}, patternProperties: {'^a': {type: integer}}}", "input.abc"),
        ("{properties: {b: {}}, additionalProperties: {type: string}}", "input.a"),
        ("{properties: {b: {}}, unevaluatedProperties: {type: string}}", "input.a"),
        ("{properties: {b: {}}, allOf: [{required: [a], properties: {a: {}}}]}", "input.a"),
        ("{properties: {b: {}}, anyOf: [{required: [a]}, {required: [c]}]}", "input.a"),
        ("{properties: {b: {}}, if: {required: [b]}, then: {required: [a]}}", "input.a"),
    ],
)
def test_what_a_schema_allows_is_declared(schema: str, expression: str) -> None:
    assert diagnostics_of(schema, expression) == []


@pytest.mark.parametrize(
    ("schema", "expression", "help"),
    [
        ("{required: [account], properties: {b: {}}}", "input.acount", "did you mean `account`?"),
        ("{properties: {b: {}}, additionalProperties: false}", "input.a", None),
        ("{required: [o], properties: {o: {required: [a], properties: {b: {}}}}}", "input.o.zz", None),
        ("{properties: {b: {}}, unevaluatedProperties: false}", "input.a", None),
    ],
)
def test_what_a_schema_does_not_declare_is_reported(schema: str, expression: str, help: str | None) -> None:
    [(code, advice)] = diagnostics_of(schema, expression)
    assert code == "SAGA302"
    assert advice == (help or "declare it under `input`, or allow `additionalProperties` there")


def test_the_type_of_additional_properties_is_known() -> None:
    [(code, _)] = diagnostics_of("{additionalProperties: {type: string}}", "input.price * 2")
    assert code == "SAGA304"


@pytest.mark.parametrize(
    ("path", "undeclared"),
    [
        (("to",), None),
        (("id",), TEXT),
        (("too",), UndeclaredProperty("too", ("id", "lines", "to"))),
        (("lines", ANY_ELEMENT, "sku"), None),
        (("lines", ANY_ELEMENT, "skuu"), UndeclaredProperty("skuu", ("n", "sku"))),
    ],
)
def test_follow(path: tuple[str, ...], undeclared: Any) -> None:
    assert schema_at(ORDER, path) == undeclared


def test_elements_after_a_tuple_do_not_apply_to_it() -> None:
    assert schema_at({"prefixItems": [{"type": "integer"}], "items": TEXT}, (ANY_ELEMENT,)) is None


def test_keywords_next_to_a_reference_apply() -> None:
    schema = {"properties": {"n": {"$ref": "#/$defs/n", "default": 3}}, "$defs": {"n": {"type": "integer"}}}
    assert validate_input(Definition("shop", (), input=schema), {}) == ({"n": 3}, [])


def test_both() -> None:
    first, second = {"type": "object", "required": ["a"], "properties": {"a": {}}}, {"required": ["b", "a"]}
    assert both(first, second) == {"type": "object", "required": ["a", "b"], "properties": {"a": {}}}


CARD = {"x-sensitive": True}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"card": {"$ref": "#/$defs/text", **CARD}}, "$defs": {"text": TEXT}},
        {"allOf": [{"properties": {"card": CARD}}]},
        {"if": {"required": ["card"]}, "then": {"properties": {"card": CARD}}},
        {"patternProperties": {"^c": CARD}},
        {"additionalProperties": CARD},
        {"properties": {"card": {"type": "object", "additionalProperties": CARD}}},
        {"properties": {"card": {"anyOf": [TEXT, {"properties": {"number": CARD}}]}}},
        {"properties": {"card": TEXT}, "patternProperties": {"^c": CARD}},
        {"properties": {"card": {"$ref": "#c"}}, "$defs": {"x": {"$anchor": "c", **CARD}}},
        {"$id": "https://a.example/in", "properties": {"card": {"$ref": "c"}}, "$defs": {"x": {"$id": "c", **CARD}}},
        {"properties": {"card": {"$dynamicRef": "#c"}}, "$defs": {"x": {"$dynamicAnchor": "c", **CARD}}},
        {"properties": {"card": {"if": CARD}}},
        {"properties": {"card": {"not": CARD}}},
        {"dependentSchemas": {"card": {"properties": {"card": CARD}}}},
        {"unevaluatedProperties": CARD},
        {"properties": {"card": {"items": CARD}}},
        {"properties": {"card": {"prefixItems": [TEXT, CARD]}}},
        {"properties": {"card": {"contains": CARD}}},
        {"properties": {"card": {"unevaluatedItems": CARD}}},
        {"properties": {"card": {"propertyNames": CARD}}},
        {"properties": {"card": {"$ref": "#/x-types/card"}}, "x-types": {"card": CARD}},
    ],
)
def test_sensitivity_is_conservative(schema: Any) -> None:
    assert is_sensitive(schema, ("card",))
    with_name = {**schema, "properties": {"name": TEXT, **schema.get("properties", {})}}
    assert not is_sensitive(with_name, ("name",))


def test_a_recursive_schema_is_visited_once() -> None:
    node = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefgh"}}
    assert not is_sensitive(node, ("a", "b"))


def test_sample_inputs_satisfy_required_fields() -> None:
    schema = {
        "required": ["a", "o"],
        "properties": {"o": {"required": ["x"]}},
        "allOf": [{"required": ["b"]}, {"properties": {"c": {"type": "integer"}}, "required": ["c"]}],
    }
    definition = Definition("shop", (), input=schema)
    made = sample_input(definition)
    assert made == {"o": {"x": "x"}, "c": 1, "a": "a", "b": "b"}
    assert validate_input(definition, made) == (made, [])
