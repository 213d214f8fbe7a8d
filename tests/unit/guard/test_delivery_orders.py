"""The real guard under every delivery order: no guarantee is violated, and it agrees with the model."""

from __future__ import annotations

import pytest

from tests.unit.guard.delivery_orders import BUDGETS, walk


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize("name", BUDGETS)
def test_no_delivery_order_violates_a_guarantee(name: str) -> None:
    result = walk(BUDGETS[name])
    assert result.broken == {}
    assert result.disagreements == []
    assert result.orders > 1_000, "the walk must be exhaustive, not empty"
    print(f"{name}: {result.orders} orders, 0 violations")
