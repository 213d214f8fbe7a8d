"""`saga verify-undo`: which of the undos of an order is to blame for the rows that it leaves, and the verdicts."""

from __future__ import annotations

import pytest

from saga_workers.undo_check.real_participants import RealActions
from saga_workers.undo_check.step_verdicts import Evidence, step_verdicts
from saga_workers.undo_check.table_rows import Difference
from saga_workers.undo_check.undo_report import LeftRow, UndoneOrder, blamed_entries, hidden_entries
from sagas.actions.registry import Actions
from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext

SHOP = """
saga: buy
steps:
  - id: take
    uses: sql
    with: {connection: bank, run: update account set balance = balance - 1}
    compensate: {uses: sql, with: {connection: bank, run: update account set balance = balance + 1}}
  - id: stock
    uses: http
    with: {url: "http://stock.example/take", method: POST}
    compensate: {uses: http, with: {url: "http://stock.example/back", method: POST}}
"""


def order(*undone: str, leaves: bool = True) -> UndoneOrder:
    row = LeftRow("bank", Difference("account", "changed", {"id": "anna"}, ("balance",), 1), waived=False)
    return UndoneOrder("pay", "fails", "COMPENSATED", undone, frozenset(), (row,) if leaves else ())


@pytest.mark.parametrize(
    ("orders", "blamed", "hidden"),
    [
        ([order("take"), order("stock", "take")], {"take"}, {"stock"}),
        ([order("stock", "take")], {"stock", "take"}, set()),
        ([order("stock", leaves=False), order("stock", "take")], {"take"}, set()),
        ([order("take"), order("stock"), order("pack", "stock", "take")], {"stock", "take"}, {"pack"}),
        ([order("take"), order("take", leaves=False)], {"take"}, set()),
    ],
)
def test_an_undo_without_which_the_same_is_left_is_not_to_blame(
    orders: list[UndoneOrder], blamed: set[str], hidden: set[str]
) -> None:
    [entries] = blamed_entries(orders).values()
    assert entries == blamed
    assert hidden_entries(orders) == dict.fromkeys(hidden, frozenset(blamed))


def test_a_step_that_is_not_run_is_not_told_to_be_hidden() -> None:
    """No other order would tell it apart from the step that is to blame."""
    definition, diagnostics = parse_text(SHOP, "buy.saga.yaml", ProjectContext())
    assert definition is not None, diagnostics
    orders = [order("take"), order("stock", "take")]
    assert "stock" in hidden_entries(orders)
    evidence = Evidence(planned=(), run=orders, hidden={})
    verdicts = step_verdicts(definition, {}, RealActions(Actions([]), ["bank"]), evidence)
    assert {(verdict.step, verdict.result, verdict.can_run) for verdict in verdicts} == {
        ("take", "differs", True),
        ("stock", "not verified", False),
    }
    [why] = [verdict.why for verdict in verdicts if verdict.step == "stock"]
    assert why is not None
    assert "http is not run" in why
