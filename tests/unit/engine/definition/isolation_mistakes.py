"""Wrong definitions about isolation between sagas: one per row."""

from __future__ import annotations

from tests.unit.engine.definition.mistake import Mistake, saga

LOOK = (
    "  - {id: look, uses: sql, effect: none, with: {connection: shop, run: select balance from account where id = :id,"
    " params: {id: a}}}\n"
)

ISOLATION_MISTAKES = [
    Mistake(
        "SAGA261",
        "on a read",
        saga("  - {id: a, uses: shop.price, effect: none, ⟦commutative: true}\n"),
    ),
]

SQL_ISOLATION_MISTAKES = [
    Mistake(
        "SAGA260",
        "a value computed from an earlier read",
        saga(
            LOOK + "  - id: pay\n    uses: ⟦sql\n    pivot: true\n    with:\n      connection: shop\n"
            "      run: update account set balance = :new where id = :id\n"
            "      params: {id: a, new: '${{ steps.look.result[0].balance - 5 }}'}\n"
        ),
    ),
    Mistake(
        "SAGA261",
        "an assignment",
        saga(
            "  - {id: a, uses: sql, pivot: true, ⟦commutative: true,"
            " with: {connection: shop, run: update account set balance = 5}}\n"
        ),
    ),
    Mistake(
        "SAGA261",
        "an undo that assigns",
        saga(
            "  - {id: a, uses: sql, ⟦commutative: true, with: {connection: shop, run: update t set x = x + 1},"
            " compensate: {uses: sql, with: {connection: shop, run: update t set x = 0}}}\n"
        ),
    ),
    Mistake(
        "SAGA262",
        "a pivot that relies on another run's reservation",
        saga(
            "  - {id: look, uses: sql, effect: none, with: {connection: shop, run: select free from stock}}\n"
            "  - {id: take, uses: sql, with: {connection: shop, run: update stock set free = free - 1},"
            " compensate: {uses: sql, with: {connection: shop, run: update stock set free = free + 1}}}\n"
            "  - {id: order, uses: ⟦shop.note, with: {id: a, size: '${{ steps.look.result[0].free }}'}, pivot: true}\n"
        ),
    ),
]
