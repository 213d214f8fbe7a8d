"""Random statements and random foreign changes: every row is as before the undo, or nothing was overwritten."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, note
from hypothesis import strategies as st

from tests.helpers.sampling import examples
from tests.integration.guard.row_image_shop import Shop, shop

__all__ = ["shop"]  # a fixture

KEYS = ("a", "b", "c", "d", "e")
NOTES = ("null", "'plain'", "''", "'  spaces '", "'zero\u200bwidth'", "'quo''te'", "'%s {} \\:x'", "'Ä'")
PRICES = ("null", "0", "1.50", "99999999.99", "-0.01")


def random_statement(shop: Shop, chance: random.Random) -> str:
    """One statement that the step may run."""
    key, note_text, price = f"'{chance.choice(KEYS)}'", chance.choice(NOTES), chance.choice(PRICES)
    free = chance.randrange(9)
    return chance.choice(
        [
            f"update stock set free = free + {free}, note = {note_text} where sku = {key}",
            f"update stock set price = {price} where free >= {free}",
            f"update stock set free = {free}, price = {price}, note = {note_text}",
            f"delete from stock where sku = {key}",
            f"delete from stock where free < {free}",
            shop.upsert(key, str(free)),
            shop.upsert(key, str(free)),
            f"insert into stock (sku, free, note) values ('n{uuid4().hex[:12]}', {free}, {note_text})",
        ]
    )


def random_foreign_change(chance: random.Random) -> str:
    key = f"'{chance.choice(KEYS)}'"
    return chance.choice(
        [
            f"update stock set free = {chance.randrange(9)} where sku = {key}",
            f"update stock set note = {chance.choice(NOTES)} where sku = {key}",
            f"delete from stock where sku = {key}",
            f"update stock set price = {chance.choice(PRICES)}",
        ]
    )


async def run_round(shop: Shop, chance: random.Random) -> str:
    """Four rows, a step of one to four statements, perhaps foreign changes, and its undo. Returns how it ended."""
    await shop.sql("delete from stock")
    for key in chance.sample(KEYS, 4):
        free, price, text = chance.randrange(9), chance.choice(PRICES), chance.choice(NOTES)
        await shop.sql(f"insert into stock values ('{key}', {free}, {price}, {text})")
    saga = f"saga-{uuid4().hex[:8]}"
    statements = [random_statement(shop, chance) for _ in range(chance.randrange(1, 5))]
    changes = [random_foreign_change(chance) for _ in range(chance.choice((0, 0, 1, 2)))]
    note(f"rows: {await shop.stock()}, the step: {statements}, foreign changes: {changes}")
    try:
        return await run_step(shop, saga, statements, changes)
    finally:
        await shop.release(saga)


async def run_step(shop: Shop, saga: str, statements: list[str], changes: list[str]) -> str:
    before = await shop.stock()
    done = await shop.do(statements, saga=saga)
    assert done.kind == "done", done
    for change in changes:
        await shop.sql(change)
    changed = await shop.stock()
    images = await shop.sql(
        "select distinct row_key from saga_image where saga_id = :id and sequence > 0",
        id=shop.entry(saga, "take").saga_id,
    )
    touched = {row[0] for row in images}
    undone = await shop.undo(saga)
    after = await shop.stock()
    if undone.kind == "done":
        assert _of(after, touched, shop) == _of(before, touched, shop)
        assert _others(after, touched, shop) == _others(changed, touched, shop)
        return "restored"
    assert undone.park_reason is not None, undone
    assert after == changed
    return "parked"


def _key_text(row: tuple[Any, ...], shop: Shop) -> str:
    text = f"text:{row[0].encode().hex().upper()}" if shop.kind == "sqlite" else row[0]
    return f'{{"sku":"{text}"}}'


def _of(rows: list[tuple[Any, ...]], keys: set[str], shop: Shop) -> list[tuple[Any, ...]]:
    return [row for row in rows if _key_text(row, shop) in keys]


def _others(rows: list[tuple[Any, ...]], keys: set[str], shop: Shop) -> list[tuple[Any, ...]]:
    return [row for row in rows if _key_text(row, shop) not in keys]


@pytest.fixture
def ends() -> Iterator[set[str]]:
    """How the rounds have ended: both ways, or the rounds have shown nothing."""
    kinds: set[str] = set()
    yield kinds
    assert kinds == {"restored", "parked"}


@pytest.mark.sampled(keep=2)
@examples(12, 400, suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example empties the table
@given(chance=st.randoms(use_true_random=False))
async def test_every_row_is_restored_or_nothing_is_changed(shop: Shop, ends: set[str], chance: random.Random) -> None:
    ends.add(await run_round(shop, chance))
