"""Two definitions that mean the same have the same digest; two that do not, do not."""

from __future__ import annotations

import pytest

from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import ProjectContext
from tests.unit.engine.definition.mistake import ACTIONS

BASE = """
saga: shop
description: Sell one thing.
input: {type: object, required: [a, b], properties: {a: {type: string}, b: {type: integer}}}
deadline: 10m
steps:
  - id: reserve
    name: Reserve it
    uses: shop.reserve
    with: {sku: "${{ input.a }}", quantity: 2}
    compensate: shop.release
  - id: pay
    uses: shop.reserve
    with: {sku: b}
    needs: [reserve]
    compensate: shop.release
  - id: look
    uses: sql
    with: {connection: shop, run: select 1}
    effect: none
    needs: [reserve]
  - id: book
    uses: shop.book
    pivot: true
"""


def definition(text: str) -> Definition:
    parsed, diagnostics = parse_text(text, "shop.saga.yaml", ProjectContext(ACTIONS))
    assert parsed is not None, diagnostics
    return parsed


def changed(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


SAME = {
    "comments and blank lines": "# a comment\n" + BASE.replace("\n", "\n\n"),
    "another description": changed("Sell one thing.", "Sell another thing."),
    "other names": changed("Reserve it", "Put it aside"),
    "x- fields": BASE + "x-team: shop\n",
    "reordered keys": changed('{sku: "${{ input.a }}", quantity: 2}', '{quantity: 2, sku: "${{ input.a }}"}'),
    "blanks in an expression": changed("${{ input.a }}", "${{input.a}}"),
    "another unit": changed("deadline: 10m", "deadline: 600s"),
    "the long form": changed(
        "    compensate: shop.release\n  - id: pay", "    compensate: {uses: shop.release}\n  - id: pay"
    ),
    "a list of one": changed(
        "    compensate: shop.release\n  - id: pay", "    compensate: [shop.release]\n  - id: pay"
    ),
    "the long form of sql": changed("run: select 1", "run: [{sql: select 1}]"),
    "written defaults": changed("    needs: [reserve]\n    comp", "    needs: [reserve]\n    timeout: 30s\n    comp"),
    "defaults of the saga": changed("deadline: 10m", "deadline: 10m\ndefaults: {timeout: 30s, connection: shop}"),
    "explicit needs": changed("    uses: shop.book", "    uses: shop.book\n    needs: [look, pay]"),
    "needs that are implied": changed("    uses: shop.book", "    uses: shop.book\n    needs: [reserve, pay, look]"),
    "one need without a list": changed("    needs: [reserve]\n    comp", "    needs: reserve\n    comp"),
    "written language": changed("saga: shop", "saga: shop\nlanguage: 1"),
    "an anchor": changed("with: {sku: b}", "with: {<<: &more {sku: b}}"),
    "descriptions in the schema": changed("a: {type: string}", "a: {type: string, description: what}"),
    "another order of required": changed("[a, b]", "[b, a]"),
}

OTHER = {
    "another name": changed("saga: shop", "saga: shop2"),
    "another argument": changed("quantity: 2", "quantity: 3"),
    "a text for a number": changed("with: {sku: b}", "with: {sku: '1'}"),
    "another deadline": changed("10m", "11m"),
    "another timeout": changed("    pivot: true", "    pivot: true\n    timeout: 31s"),
    "another graph": changed("    needs: [reserve]\n    comp", "    needs: []\n    comp"),
    "another schema": changed("b: {type: integer}", "b: {type: number}"),
    "a property called description": changed("b: {type: integer}", "b: {type: integer}, description: {type: string}"),
    "an output": BASE + "output: 1\n",
    "an output of null and none": BASE + "output: [null]\n",
    "another id": BASE + 'id: "a-${{ input.a }}"\n',
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME.keys())
def test_the_same(text: str) -> None:
    assert definition(text).digest == definition(BASE).digest


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER.keys())
def test_another(text: str) -> None:
    assert definition(text).digest != definition(BASE).digest


def test_steps_in_another_order_with_the_same_needs() -> None:
    first = "  - {id: a, uses: shop.tell, effect: none, needs: []}\n"
    second = "  - {id: b, uses: shop.tell, effect: none, needs: []}\n"
    assert (
        definition(f"saga: s\nsteps:\n{first}{second}").digest == definition(f"saga: s\nsteps:\n{second}{first}").digest
    )
