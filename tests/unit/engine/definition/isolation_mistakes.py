"""Wrong definitions about isolation between sagas: one per row."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import Mistake, saga

ISOLATION_MISTAKES = [
    Mistake(
        "SAGA261",
        "on a read",
        saga("  - {id: a, uses: shop.price, effect: none, ⟦commutative: true}\n"),
    ),
]
