"""`saga verify-undo`: which of the undos of an order is to blame for the rows that it leaves."""

from __future__ import annotations

import pytest

from saga_workers.undo_check.table_rows import Difference
from saga_workers.undo_check.undo_report import LeftRow, UndoneOrder, blamed_entries, hidden_entries


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
