"""Sample inputs and results."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.input_validation import validate_input
from sagas.simulation import sample_input, simulate
from sagas.simulation.samples import sample_results
from tests.unit.engine.machine.driver import saga, step

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "lines", "when"],
    "properties": {
        "id": {"type": "string", "minLength": 4, "maxLength": 6},
        "kind": {"enum": ["b", "a"]},
        "when": {"type": "string", "format": "date"},
        "count": {"type": "integer", "exclusiveMinimum": 4, "multipleOf": 5},
        "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/line"}},
        "coupons": {"type": "array", "default": [], "items": {"type": "string"}, "uniqueItems": True},
        "free": {"default": 7},
    },
    "$defs": {"line": {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}},
}


def test_an_input_that_fits_its_schema() -> None:
    definition = saga(step("a"), input=SCHEMA)
    made = sample_input(definition)
    assert validate_input(definition, made) == (made, [])
    assert made == {
        "id": "ididid",
        "kind": "b",
        "when": "2026-01-01",
        "count": 5,
        "lines": [{"sku": "sku"}, {"sku": "sku"}],
        "coupons": ["coupon1", "coupon2"],
        "free": 7,
    }
    assert sample_input(definition) == made


def test_sample_strings_read_as_amounts_are_digits() -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "string"}}}
    definition = saga(step("a", with_={"x": "${{ decimal(input.amount) }}"}), input=schema)
    assert sample_input(definition) == {"amount": "1"}


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("steps.a.result.id", {"id": 1}),
        ("steps.a.result['b'].c", {"b": {"c": 1}}),
        ("steps.a.result.state == 'open'", {"state": "open"}),
        ("sum(steps.a.result.lines.map(l, decimal(l.total)))", {"lines": [{"total": 1}]}),
        ("steps.a.result.lines.filter(l, l.ok == true).map(l, l.id)", {"lines": [{"ok": True, "id": 1}]}),
        ("lower(steps.a.result.name)", {"name": "1"}),
        ("steps.a.result.rows[0].n", {"rows": [{"n": 1}]}),
        ("input.x", {}),
    ],
)
def test_sample_results_satisfy_the_expressions(expression: str, result: Any) -> None:
    definition = saga(step("a"), step("b"), output="${{ " + expression + " }}")
    assert sample_results(definition, {})["a"] == result
    assert simulate(definition, {"x": 1}).state == "COMPLETED"


def test_an_annotated_result_wins() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}
    definition = saga(step("a"), output="${{ steps.a.result.id }}")
    assert sample_results(definition, {"act.a": schema})["a"] == {"id": "1", "n": 1}


def test_items_of_a_result_have_the_fields_that_their_step_reads() -> None:
    items = "${{ steps.a.result.rows.filter(r, r.kind == 'new') }}"
    definition = saga(step("a"), step("b", for_each=items, with_={"id": "${{ item.key.id }}"}))
    assert sample_results(definition, {})["a"] == {"rows": [{"kind": "new", "key": {"id": 1}}]}
    assert simulate(definition, {}).state == "COMPLETED"
