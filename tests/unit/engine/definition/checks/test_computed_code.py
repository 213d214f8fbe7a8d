"""Computed names and paths: the allowed ones, and their checks when the step runs."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import KafkaResources, ProjectContext, SparkResources
from sagas.expressions import ExpressionError, compile_value

HEAD = """
saga: shop
input:
  type: object
  required: [day, year, region, lines]
  properties:
    day: {type: string}
    year: {type: integer}
    region: {enum: [eu, us]}
    lines:
      type: array
      items: {type: object, required: [kind, sku], properties: {kind: {const: a}, sku: {type: string}}}
steps:
"""
PROJECT = ProjectContext(
    {}, {"shop": {"kind": "sql"}}, SparkResources("shop", {"lake": {"type": "sql"}}), KafkaResources("shop")
)


def read(steps: str) -> tuple[Any, list[str]]:
    definition, diagnostics = parse_text(HEAD + steps, "shop.saga.yaml", PROJECT)
    return definition, [diagnostic.code for diagnostic in diagnostics]


@pytest.mark.parametrize(
    "table",
    [
        "orders",
        "orders-${{ input.region }}",
        "orders-${{ input.year }}",
        "${{ vars.topic }}",
        "${{ saga.name }}",
        "${{ input.day == 'a' ? 'a' : 'b' }}",
        "${{ {'x': 'orders-x', 'y': 'orders-y'}[input.day] }}",
        "${{ default(vars.topic, 'a') + '-' + lower(input.region) }}",
        "a-${{ item.kind }}",
        "$${{",
    ],
)
def test_a_name_from_a_closed_list_is_accepted(table: str) -> None:
    _, codes = read(
        f"""
  - id: facts
    for_each: ${{{{ input.lines }}}}
    uses: spark
    with:
      sql: select 1
      inputs: {{i: {{connection: shop, table: "{table}"}}}}
      output: {{parquet: out}}
"""
    )
    assert not {"SAGA420", "SAGA421", "SAGA422"} & set(codes)


@pytest.mark.parametrize(
    "with_",
    [
        '{topic: "orders-${{ input.day }}", value: 1}',
        "{events: \"${{ input.lines.map(l, {'topic': l.sku, 'value': l}) }}\"}",
    ],
)
def test_topics_may_be_computed(with_: str) -> None:
    _, codes = read(f"  - {{id: a, uses: kafka.publish, with: {with_}, effect: none}}\n")
    assert not {"SAGA420", "SAGA421", "SAGA422"} & set(codes)


def test_values_and_conditions_by_column_take_any_value() -> None:
    _, codes = read(
        """
  - id: facts
    uses: spark
    with:
      sql: select * from orders where day = :day
      params: {day: "${{ input.day }}"}
      inputs:
        orders: {connection: shop, table: orders, where: {day: "${{ input.day }}"}}
        receipts: {connection: shop, query: "select * from r where day = :day", params: {day: "${{ input.day }}"}}
      output: {connection: shop, table: facts, mode: overwrite_where, where: {day: "${{ input.day }}"}}
      audit:
        - sql: select * from output where day <> :day
        - accepted_values: {column: day, values: ["${{ input.day }}"]}
"""
    )
    assert codes == []


JOB = """
  - id: facts
    uses: spark
    with:
      sql: select 1
      inputs: {{i: {{parquet: "{path}"}}}}
      output: {{parquet: "out/day=${{{{ input.day // the day }}}}/x"}}
"""


@pytest.mark.parametrize(
    ("day", "safe"),
    [
        ("2026-01-31", True),
        ("checkout-1/facts", True),  # the id of a nested saga
        ("a..b", True),
        ("", True),
        ("..", False),
        ("a/../../b", False),
        (".", False),
        ("/etc", False),
        ("a//b", False),
        ("a\\b", False),
        ("*", False),
        ("%2e%2e", False),
        ("a\nb", False),
    ],
)
def test_a_value_cannot_lead_a_path_out_of_its_folder(day: str, safe: bool) -> None:
    definition, codes = read(JOB.format(path="${{ vars.root }}/${{ input.day }}/*"))
    assert codes == []
    template = compile_value(definition.steps[0].do.with_)
    names = {"input": {"day": day}, "vars": {"root": "s3://bucket"}}
    if safe:
        made = template.render(names)
        assert made["inputs"]["i"]["parquet"] == f"s3://bucket/{day}/*"
        assert made["outputs"]["output"]["parquet"] == f"out/day={day}/x"
    else:
        with pytest.raises(ExpressionError, match="cannot be a part of a path"):
            template.render(names)
