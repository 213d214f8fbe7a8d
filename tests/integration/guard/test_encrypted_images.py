"""With `[codec]` the images of `compensate: auto` are encrypted, and undos restore rows from them as ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.guard.conftest import GuardDatabase, database_url, open_guard_database
from tests.integration.guard.row_image_shop import COLUMNS, Shop

KEY = "ab" * 32
CANARY = "kanari"


@pytest_asyncio.fixture(params=["postgres", "mariadb", "sqlite"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    opened = await open_guard_database(request.param, database_url(request.param, request, tmp_path), codec_key=KEY)
    shop = Shop(opened)
    await shop.sql(f"create table stock ({COLUMNS})")
    await shop.sql("insert into stock values ('kanari-a', 5, 1, 'kanari'), ('b', 7, 2, null)")
    yield shop
    await shop.sql("drop table stock")
    await opened.connections.close()


async def stored(database: GuardDatabase) -> str:
    """The values of all images and row locks."""
    images = await database.rows("select row_key, before_image, after_image from saga_image where sequence <> 0")
    locks = await database.rows("select row_key from saga_row_lock")
    return "\n".join(str(value) for row in [*images, *locks] for value in row)


async def test_images_have_no_value_in_clear_and_restore_the_rows(shop: Shop) -> None:
    before = await shop.stock()
    assert (await shop.do("update stock set note = 'kanari 2' where sku = 'kanari-a'")).kind == "done"
    assert (await shop.do("update stock set note = 'kanari 3'", step="later")).kind == "done"
    text = await stored(shop.database)
    assert (CANARY in text, "saga:encrypted:" in text) == (False, True)
    # The first undo passes its image on to the later one, which restores both.
    assert (await shop.undo()).result == {"restored": 0, "left_to": ["later"]}
    assert CANARY not in await stored(shop.database)
    assert (await shop.undo(step="later")).kind == "done"
    assert await shop.stock() == before


async def test_an_undo_without_the_key_waits_for_it(shop: Shop) -> None:
    await shop.do("update stock set note = 'x' where sku = 'b'")
    changed = await shop.stock()
    without = await open_guard_database(shop.kind, shop.database.url)
    other = Shop(without)
    other.id, other.table = shop.id, shop.table
    outcome = await other.undo()
    await without.connections.close()
    assert (outcome.infrastructure, outcome.retryable) == (True, True), outcome
    assert "[codec] key" in str(outcome.failure)
    assert await shop.stock() == changed
    assert (await shop.undo()).result == {"restored": 1}
