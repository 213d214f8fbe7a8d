"""Values that a program can write into a column of SQLite: bytes, and text that is not UTF-8."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saga_workers.enqueued import row_decisions
from saga_workers.enqueued.deliverer import Deliverer
from saga_workers.enqueued.delivering import Delivering
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.waiting import until
from tests.integration.enqueued.conftest import Shop

CANARY = "4111-2222"
GOOD_ROW = "insert into saga_enqueued (saga, saga_id, input) values ('checkout', :id, '{\"product\": \"fig\"}')"
NOT_UTF8 = "cast(x'7bff7d' || '" + CANARY + "' as text)"


@pytest.fixture
def kind() -> str:
    return "sqlite"


async def test_bytes_are_read_as_text(shop: Shop) -> None:
    await shop.sql(
        "insert into saga_enqueued (saga, saga_id, input, order_key)"
        " values (cast('checkout' as blob), cast(:id as blob), cast(:input as blob), cast('k' as blob))",
        id=shop.mark,
        input='{"product": "fig"}',
    )
    await shop.sql(
        "insert into saga_enqueued (saga_id, signal_name, input, order_key)"
        " values (:id, cast('paid' as blob), cast('7' as blob), 'k')",
        id=shop.mark,
    )
    await shop.deliver()
    assert await shop.rows() == []
    assert await shop.inputs(1) == {shop.mark: {"product": "fig", "quantity": 1}}
    assert await shop.history(shop.mark) == ["paid"]


@pytest.mark.parametrize("column", ["saga", "saga_id", "signal_name", "input", "order_key"])
@pytest.mark.parametrize("stored", ["text", "blob"])
async def test_what_is_not_utf8_is_refused_and_holds_up_nothing(
    shop: Shop, column: str, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"saga": "'checkout'", "saga_id": f"'{shop.mark}-bad'", "input": '\'{"product": "fig"}\''}
    values[column] = NOT_UTF8.replace("as text", f"as {stored}")
    row = f"insert into saga_enqueued ({', '.join(values)}) values ({', '.join(values.values())})"
    await shop.sql(row)
    await shop.sql(GOOD_ROW, id=shop.mark)
    await shop.deliver()
    expected = {shop.mark, f"{shop.mark}-bad"} if column == "order_key" else {shop.mark}
    assert set(await shop.inputs(len(expected))) == expected
    settings = shop.project.settings
    listed = await row_decisions.list_rows(settings, None, None, 10)
    assert [(row.status, row.reason) for row in listed] == (
        [] if column == "order_key" else [("REFUSED", f"`{column}` is not UTF-8")]
    )
    for each in listed:
        await row_decisions.drop_row(settings, None, each.row, reason="a test", who="ada")
    if column == "input":
        assert CANARY not in caplog.text


async def test_an_internal_error_about_one_database_leaves_the_others_alone(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "saga.toml"
    url = f"sqlite+aiosqlite:///{tmp_path}/other.db"
    text = file.read_text().replace('connections = ["shop"]', 'connections = ["other", "shop"]')
    file.write_text(f'{text}\n[connections.other]\nurl = "{url}"\n')
    run = Deliverer.run

    async def fail_for_the_other(self: Deliverer, grace: float) -> None:
        if self.connection == "other":
            raise TypeError("a bug")
        await run(self, grace)

    monkeypatch.setattr(Deliverer, "run", fail_for_the_other)
    stop = asyncio.Event()
    delivering = Delivering(Project(load_settings(config=str(file))), ("other", "shop"), stop)
    task = asyncio.create_task(delivering.run(5.0))
    await shop.sql(GOOD_ROW, id=shop.mark)
    await until(shop.is_empty)
    task.cancel()
    await asyncio.wait([task])
