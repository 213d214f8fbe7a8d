"""Isolation as the statements of `sql` steps show it."""

from __future__ import annotations

import pytest

from sagas.definition.analysis.isolation import isolation_of
from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from sagas.sql_text.statement_effects import statement_effect

COMMUTES = [
    "update stock set free = free - :n, sold = coalesce(sold, 0) + 1 where sku = :sku and free >= :n",
    "update stock set free = :n + free",
    "insert into booking (id, amount) values (:id, :amount)",
    "insert into booking (id) values (:id) on conflict do nothing",
    "select * from stock",
]
DOES_NOT_COMMUTE = [
    "update stock set free = :n",
    "update stock set free = free * 2",
    "update stock set free = sold + 1",
    "update stock set free = free - sold",
    "update stock set free = :n - free",
    "insert into stock (sku, free) values (:sku, 1) on conflict (sku) do update set free = 1",
    "delete from stock where sku = :sku",
]


@pytest.mark.parametrize("statement", COMMUTES)
def test_what_only_adds_commutes(statement: str) -> None:
    effect = statement_effect(statement)
    assert effect is not None
    assert effect.commutes


@pytest.mark.parametrize("statement", DOES_NOT_COMMUTE)
def test_what_overwrites_does_not_commute(statement: str) -> None:
    effect = statement_effect(statement)
    assert effect is not None
    assert not effect.commutes


@pytest.mark.parametrize("statement", ["select for", "update a set x = 1 from b", "select 1; select 2", "", "call f()"])
def test_what_is_not_understood_is_not_judged(statement: str) -> None:
    assert statement_effect(statement) is None


SAGA = """
saga: pay
steps:
  - id: look
    uses: sql
    effect: none
    with: {{connection: shop, run: "select balance, version, id from account where id = :id", params: {{id: a}}}}
  - id: pay
    uses: sql
    pivot: true
    with:
      connection: shop
      run: "{update}"
      params:
        new: "${{{{ steps.look.result[0].balance - 5 }}}}"
        id: "${{{{ steps.look.result[0].id }}}}"
        {version}
      {expect}
"""


@pytest.mark.parametrize(
    ("update", "expect", "codes"),
    [
        ("update account set balance = :new where id = :id", "expect_rows: 1", ["SAGA260"]),
        ("update account set balance = :new where id = :id and version = :version", "", ["SAGA260"]),
        ("update account set balance = :new where id = :id or version = :version", "expect_rows: 1", ["SAGA260"]),
        ("update account set balance = :new where id = :id and version = :version", "expect_rows: 1", []),
        ("update account set balance = balance - 5, paid = :new where id = :id", "", []),
        ("update other set balance = :new where id = :id", "", []),
    ],
)
def test_a_lost_update_needs_a_version_check(update: str, expect: str, codes: list[str]) -> None:
    version = 'version: "${{ steps.look.result[0].version }}"' if ":version" in update else ""
    text = SAGA.format(update=update, expect=expect, version=version)
    definition, diagnostics = parse_text(text, "a.saga.yaml", ProjectContext())
    assert [diagnostic.code for diagnostic in diagnostics if diagnostic.code.startswith("SAGA26")] == codes
    assert definition is not None
    [fuzzy] = next(anomaly for anomaly in isolation_of(definition) if anomaly.step == "look").risks
    assert (fuzzy.covered_by == ("version check",)) == ("and version" in update and bool(expect))


RELY = """
saga: order
steps:
  - {{id: look, uses: sql, effect: none, with: {{connection: shop, run: select free from stock}}}}
  - id: take
    uses: sql
    with: {{connection: shop, run: update {table} set free = free - 1}}
    compensate: {{uses: sql, with: {{connection: shop, run: update {table} set free = free + 1}}}}
    {confirm}
  - {{id: order, uses: http, pivot: true, with: {{url: 'http://a', method: POST, json: "${{{{ {value} }}}}"}}}}
"""
CONFIRM = "confirm: {uses: sql, with: {connection: shop, run: update stock set sold = sold + 1}}"


@pytest.mark.parametrize(
    ("table", "confirm", "value", "codes"),
    [
        ("stock", "", "steps.look.result", ["SAGA262"]),
        ("stock", CONFIRM, "steps.look.result", []),
        ("elsewhere", "", "steps.look.result", []),
        ("stock", "", "steps.take.result", []),
    ],
)
def test_a_pivot_may_not_rely_on_what_others_may_undo(table: str, confirm: str, value: str, codes: list[str]) -> None:
    text = RELY.format(table=table, confirm=confirm, value=value)
    definition, diagnostics = parse_text(text, "a.saga.yaml", ProjectContext())
    assert definition is not None, diagnostics
    assert [diagnostic.code for diagnostic in diagnostics if diagnostic.code.startswith("SAGA26")] == codes


def test_rows_of_an_automatic_compensation_are_locked() -> None:
    text = """
saga: take
steps:
  - {id: take, uses: sql, compensate: auto, with: {connection: shop, run: "update stock set free = 1 where sku = 'a'"}}
  - {id: order, uses: http, pivot: true, with: {url: 'http://a', method: POST}}
"""
    definition, diagnostics = parse_text(text, "a.saga.yaml", ProjectContext())
    assert definition is not None, diagnostics
    by_anomaly = {risk.anomaly: risk.covered_by for risk in isolation_of(definition)[0].risks}
    assert by_anomaly == {"dirty read": (), "lost update": ("row lock",)}
