"""With `[codec]` the input of a row that is refused or dropped, and so stays, is encrypted."""

from __future__ import annotations

import pytest

from tests.integration.enqueued.conftest import CHECKOUT, Shop
from tests.integration.enqueued.test_enqueued_commands import command, write

SECRET = "4000-0012-3456"


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def enqueue_settings() -> str:
    return f'[codec]\nkey = "{"c" * 64}"\n'


async def inputs(shop: Shop) -> str:
    return str(await shop.sql("select input from saga_enqueued order by id"))


async def test_rows_that_stay_are_encrypted(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    await write(shop, "later", f"{shop.mark}-1", {"product": SECRET})
    await write(shop, "later", f"{shop.mark}-2", {"product": SECRET})
    await write(shop, "later", f"{shop.mark}-3", {"product": SECRET})
    assert (await command(shop, capsys, "enqueued", "drop", "3", "--reason", "a test"))[0] == 0
    assert (await inputs(shop)).count(SECRET) == 2, "they are still to be delivered"
    await shop.deliver()
    assert [status for status, *_ in await shop.rows()] == ["REFUSED", "REFUSED", "DROPPED"]
    assert SECRET not in await inputs(shop)

    # A person may write another input; the value of another row is not taken for that of this one.
    await shop.sql("update saga_enqueued set input = :input where id = 2", input='{"product": "fig"}')
    [(of_first,)] = await shop.sql("select input from saga_enqueued where id = 1")
    (shop.folder / "later.saga.yaml").write_text(CHECKOUT.replace("saga: checkout", "saga: later"))
    for row in ("1", "2", "3"):
        assert (await command(shop, capsys, "enqueued", "retry", row))[0] == 0
    await shop.deliver()
    started = {id: input["product"] for id, input in (await shop.inputs(3)).items()}
    assert started == {f"{shop.mark}-1": SECRET, f"{shop.mark}-2": "fig", f"{shop.mark}-3": SECRET}

    await write(shop, "later", f"{shop.mark}-4", {"product": "nut"})
    await shop.sql("update saga_enqueued set input = :input", input=of_first)
    await shop.deliver()
    [(status, _, reason)] = await shop.rows()
    assert status == "REFUSED"
    assert reason == "`input` cannot be read: a stored value of this saga was changed in its database"
