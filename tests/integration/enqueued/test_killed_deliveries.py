"""Whatever process dies, and when: each enqueued row of a committed transaction has its effect exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from sagas import enqueue
from tests.helpers.processes import CommandProcess, RelayProcess, TemporalServer, WorkerProcess
from tests.helpers.waiting import until
from tests.integration.enqueued.conftest import Shop
from tests.integration.enqueued.killed_relay import die_at

SAGAS = 12
BOOKED = """
saga: booked
input: {type: object, required: [number], properties: {number: {type: integer}}}
steps:
  - id: book
    uses: sql
    with: {connection: shop, run: "insert into booking (number) values (:number)", params: {number: "${{ input.number }}"}}
    compensate: {uses: sql, with: {connection: shop, run: "delete from booking where number = :number",
      params: {number: "${{ input.number }}"}}}
"""  # noqa: E501
ALONE, TOGETHER = "", 'bulk_wait = "250ms"\n'
BY_WORKER = 'delivered_by = "worker"\n'


@pytest.fixture
def enqueue_settings(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "")


@pytest.mark.parametrize(
    ("kind", "enqueue_settings", "point"),
    [
        pytest.param("postgresql", BY_WORKER + ALONE, "a saga is started", marks=pytest.mark.slow),
        ("postgresql", TOGETHER, "before a group is started"),
        ("postgresql", BY_WORKER + TOGETHER, "a group is started"),
        ("mariadb", BY_WORKER + ALONE, "before rows are deleted"),
        ("mariadb", TOGETHER, "a group is started"),
        pytest.param("sqlite", BY_WORKER + ALONE, "a saga is started", marks=pytest.mark.slow),
    ],
    indirect=["enqueue_settings"],
)
async def test_each_row_has_its_effect_once(shop: Shop, enqueue_settings: str, point: str) -> None:
    await _make_bookable(shop)
    async with AsyncSession(shop.engine) as session:
        for number in range(SAGAS):
            await enqueue(session, "booked", {"number": number}, id=f"{shop.mark}-{number}")
        await session.commit()
    verb = "worker" if enqueue_settings.startswith(BY_WORKER) else "relay"
    others = [WorkerProcess("healthy", shop.folder)] if verb == "relay" else []
    with _running(others):
        for count in (1, 2):
            process = CommandProcess(
                f"killed-{count}", shop.folder, verb, "--grace", "5s", first=partial(die_at, point, count)
            )
            process.launch()
            # It may deliver everything without passing the point so often.
            await until(lambda process=process: _is_dead_or_idle(process, shop))
            process.kill()
            assert process.exit_code() == -signal.SIGKILL, process.tail()
        with _running([CommandProcess("last", shop.folder, verb, "--grace", "5s")]):
            await until(shop.is_empty)
            await until(lambda: _has_bookings(shop, SAGAS))
            for number in range(SAGAS):
                await until(lambda number=number: shop.is_completed(f"{shop.mark}-{number}"))
    assert await shop.sql("select number, count(*) from booking group by number order by number") == [
        (number, 1) for number in range(SAGAS)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("enqueue_settings", [ALONE, TOGETHER], indirect=True, ids=["alone", "shared"])
async def test_temporal_is_killed_while_rows_are_delivered(shop: Shop, own_temporal: TemporalServer) -> None:
    await _make_bookable(shop)
    await shop.move_to(own_temporal)
    enqueued, is_over = 0, asyncio.Event()

    async def enqueue_on() -> None:
        """Enqueue rows until the server was killed often enough, so that each kill meets a delivery."""
        nonlocal enqueued
        while not is_over.is_set():
            async with AsyncSession(shop.engine) as session:
                for _ in range(3):
                    await enqueue(session, "booked", {"number": enqueued}, id=f"{shop.mark}-{enqueued}")
                    enqueued += 1
                await session.commit()
            await asyncio.sleep(0.05)

    async def has_delivered(more: int) -> bool:
        return enqueued - len(await shop.rows()) >= more

    with _running([WorkerProcess("healthy", shop.folder), RelayProcess("relay", shop.folder)]):
        application = asyncio.create_task(enqueue_on())
        for _ in range(2):
            delivered = enqueued - len(await shop.rows())
            await until(lambda delivered=delivered: has_delivered(delivered + 10))
            await asyncio.to_thread(own_temporal.kill)
            await asyncio.sleep(0.3)
            assert not await shop.is_empty(), "rows wait for the server"
            await asyncio.to_thread(own_temporal.start)
        is_over.set()
        await application
        await until(shop.is_empty)
        completed = "select count(*) from saga_run where state = 'COMPLETED'"
        await until(lambda: _has_count(shop, completed, enqueued))
    assert await shop.sql("select number, count(*) from booking group by number order by number") == [
        (number, 1) for number in range(enqueued)
    ]


async def test_a_killed_application_has_enqueued_what_it_has_committed(shop: Shop) -> None:
    await _make_bookable(shop)
    url = shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    for number, last in enumerate(("pass", "await connection.commit()")):
        application = (
            "import asyncio, os, signal, psycopg\n"
            "from sagas import enqueue\n"
            "async def order():\n"
            f"    connection = await psycopg.AsyncConnection.connect({url!r})\n"
            f"    await enqueue(connection, 'booked', {{'number': {number}}}, id='{shop.mark}-{number}')\n"
            f"    {last}\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "asyncio.run(order())\n"
        )
        killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", application], check=False)
        assert killed.returncode == -signal.SIGKILL
    with _running([WorkerProcess("healthy", shop.folder)]):
        await shop.deliver()
        await until(lambda: shop.is_completed(f"{shop.mark}-1"))
    assert await shop.sql("select number from booking") == [(1,)]
    assert list(await shop.inputs(1)) == [f"{shop.mark}-1"]


async def _has_count(shop: Shop, query: str, count: int) -> bool:
    return await shop.sql(query) == [(count,)]


async def _make_bookable(shop: Shop) -> None:
    (Path(shop.folder) / "booked.saga.yaml").write_text(BOOKED)
    await shop.sql("create table booking (number integer)")


@contextlib.contextmanager
def _running(processes: Sequence[CommandProcess]) -> Iterator[None]:
    for process in processes:
        process.launch()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


async def _is_dead_or_idle(process: CommandProcess, shop: Shop) -> bool:
    return not process.running or await shop.is_empty()


async def _has_bookings(shop: Shop, count: int) -> bool:
    return len(await shop.sql("select distinct number from booking")) == count
