"""Operators see rows that are refused or wait, and decide about them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from saga_cli.main import run
from saga_workers.doctor.checks import run_checks
from saga_workers.enqueued import stuck_rows
from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.enqueued.enqueued_table import EnqueuedTable
from sagas import enqueue
from tests.helpers.forked_commands import run_command
from tests.integration.enqueued.conftest import Shop


@pytest.fixture(params=["postgresql", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


async def command(shop: Shop, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    """The exit code, the JSON document, and what is on stderr."""
    capsys.readouterr()
    code = await asyncio.to_thread(run, [*words, "--json", "--config", str(shop.folder / "saga.toml")])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.strip() else None, err


async def write(shop: Shop, saga: str, saga_id: str, value: Any) -> None:
    async with AsyncSession(shop.engine) as session:
        await enqueue(session, saga, value, id=saga_id)
        await session.commit()


@pytest.mark.sampled(turns="kind")
async def test_a_refused_row_is_listed_and_tried_again_or_dropped(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    await write(shop, "later", f"{shop.mark}-1", {"product": "fig"})
    await write(shop, "checkout", f"{shop.mark}-2", {"product": 7})
    await shop.deliver()

    code, rows, _ = await command(shop, capsys, "enqueued", "list")
    assert code == 0
    assert [(row["row"], row["status"], row["saga"], row["id"]) for row in rows] == [
        (1, "REFUSED", "later", f"{shop.mark}-1"),
        (2, "REFUSED", "checkout", f"{shop.mark}-2"),
    ]
    assert rows[0]["reason"].startswith("the project has no saga 'later' that this process can use")

    definition = (shop.folder / "checkout.saga.yaml").read_text()
    (shop.folder / "later.saga.yaml").write_text(definition.replace("saga: checkout", "saga: later"))
    assert (await command(shop, capsys, "enqueued", "retry", "1"))[0] == 0
    assert (await command(shop, capsys, "enqueued", "drop", "2", "--reason", "a test"))[0] == 0
    await shop.deliver()
    assert list(await shop.inputs(1)) == [f"{shop.mark}-1"]
    assert (await command(shop, capsys, "enqueued", "list"))[1] == []
    [dropped] = (await command(shop, capsys, "enqueued", "list", "--dropped"))[1]
    assert dropped["status"] == "DROPPED"
    assert dropped["reason"].endswith(": a test")
    assert (await command(shop, capsys, "enqueued", "drop", "2", "--reason", "again"))[0] == 9
    assert (await command(shop, capsys, "enqueued", "drop", "99", "--reason", "no such row"))[0] == 2
    assert (await command(shop, capsys, "enqueued", "retry"))[0] == 2
    assert (await command(shop, capsys, "enqueued", "list", "--connection", "bank"))[0] == 2


async def test_a_row_that_another_program_has_made_is_listed_and_dropped(
    shop: Shop, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    overriding = "overriding system value" if kind == "postgresql" else ""
    for id, status in ((-5, "REFUSED"), (3, "HELD")):
        columns = f"(id, status, saga, saga_id) {overriding}"
        await shop.sql(f"insert into saga_enqueued {columns} values ({id}, '{status}', 'checkout', '{shop.mark}')")
    listed = (await command(shop, capsys, "enqueued", "list"))[1]
    assert [(row["row"], row["status"]) for row in listed] == [(-5, "REFUSED"), (3, "HELD")]
    config = ("--json", "--config", str(shop.folder / "saga.toml"), "--reason", "x")
    for words in (("enqueued", "drop", *config, "--", "-5"), ("enqueued", "drop", *config, "3")):
        assert await asyncio.to_thread(run, [*words]) == 0
    assert (await command(shop, capsys, "enqueued", "list"))[1] == []


async def test_a_waiting_row_that_is_dropped_is_not_delivered(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    await write(shop, "checkout", f"{shop.mark}-1", {"product": "fig"})
    code, document, _ = await command(shop, capsys, "enqueued", "drop", "1", "--reason", "a test")
    assert code == 0
    assert "unless a delivery was under way" in document["message"]
    await write(shop, "checkout", f"{shop.mark}-2", {"product": "fig"})
    await shop.deliver()
    assert list(await shop.inputs(1)) == [f"{shop.mark}-2"]


@pytest.mark.sampled(turns="kind")
async def test_refused_and_late_rows_are_in_the_list_of_what_is_stuck_in_doctor_and_in_metrics(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    await write(shop, "checkout", f"{shop.mark}-1", {"product": 7})
    await shop.deliver()
    await shop.sql(
        "insert into saga_enqueued (saga, input, created_at) select 'checkout', '{}', created_at - 120"
        " from saga_enqueued"
    )

    code, _, err = await command(shop, capsys, "list", "--stuck")
    assert code == 0
    assert "1 enqueued row was refused; row 1: the input of checkout is not valid" in err
    assert "1 enqueued row waits, the oldest for 12" in err
    done = await asyncio.to_thread(run_command, ["list", "--stuck"], shop.folder)
    assert done.stdout == "no saga is stuck, but rows that are enqueued are not delivered\n", done
    listed = (await asyncio.to_thread(run_command, ["enqueued", "list"], shop.folder)).stdout
    assert f"perhaps no `saga {shop.project.settings.enqueue.delivered_by}` runs" in listed
    assert "waits for its turn" not in listed
    failing = {result.check for result in await run_checks(shop.project.settings) if not result.ok}
    assert "enqueued rows of shop" in failing
    metrics = EnqueuedMetrics({"shop": EnqueuedTable(shop.engine)})
    await metrics.refresh()
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    assert 'saga_enqueued_rows{connection="shop",status="REFUSED"} 1.0' in lines
    assert 'saga_enqueued_rows{connection="shop",status="NEW"} 1.0' in lines
    [oldest] = [line for line in lines if line.startswith("saga_enqueued_oldest_seconds{")]
    assert float(oldest.split()[1]) >= 120


@pytest.mark.sampled(turns="kind")
async def test_rows_that_are_delivered_in_order_do_not_look_as_if_no_worker_ran(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        await shop.sql("insert into saga_enqueued (saga, input, order_key, created_at) values ('order', '{}', 'k', 0)")
    read_rows = stuck_rows.read_rows

    async def read_and_deliver(name: str, engine: AsyncEngine, statuses: Sequence[str], limit: int) -> list[Any]:
        rows = await read_rows(name, engine, statuses, limit)
        if rows:
            await shop.sql("delete from saga_enqueued where id = :id", id=rows[0].row)
        return rows

    idle = [problem async for _, problem in stuck_rows.stuck_rows(shop.project.settings)]
    monkeypatch.setattr(stuck_rows, "read_rows", read_and_deliver)
    busy = [problem async for _, problem in stuck_rows.stuck_rows(shop.project.settings)]

    assert ["perhaps no" in problem for problem in (*idle, *busy)] == [True, False]
    assert "they are being delivered" in busy[0]


async def test_once_delivers_what_is_new_and_ends(shop: Shop) -> None:
    for number in range(30):
        await write(shop, "checkout", f"{shop.mark}-{number}", {"product": "fig"})
    done = await asyncio.to_thread(run_command, ["relay", "--once"], shop.folder)
    assert done.returncode == 0, done.stderr
    assert await shop.is_empty()
    assert len(await shop.inputs(30)) == 30
