"""An action body that is busy elsewhere for long: its transaction lives as long as its process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from saga_activities.guard.sql_session import SqlSession
from tests.helpers.waiting import LIMIT
from tests.integration.guard.conftest import GuardDatabase, clock, new_address

PUBLISHER = """
import asyncio, sys, time
from saga_activities.connections import DatabaseConnections
from sagas.settings import SqlConnection
from saga_activities.guard.entry_key import EntryKey

async def main(url, saga_id):
    async def act(sql):
        await asyncio.sleep(2.5)
        print("busy", flush=True)
        await asyncio.sleep(5)
    guard = DatabaseConnections([SqlConnection(name="shop", url=url)]).guard("shop")
    now = time.time()
    outcome = await guard.do(
        EntryKey(saga_id, "charge"), "h", act, scheduled_at=now, deadline=now + 600, idle_limit=1.0)
    print(outcome.kind, outcome.infrastructure, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.sampled(keep=1)
async def test_a_frozen_process_loses_its_transaction_before_its_attempt_ends(
    server_guard_database: GuardDatabase,
) -> None:
    guard_database, address = server_guard_database, new_address()
    guard_database.current = address
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PUBLISHER, guard_database.url, address.saga_id),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        assert worker.stdout is not None
        assert await asyncio.wait_for(worker.stdout.readline(), LIMIT) == b"busy\n"
        worker.send_signal(signal.SIGSTOP)
        outcome = await guard_database.guard.undo(address, guard_database.body("undone"), **clock(60))
        assert outcome.marker == "nothing_to_undo"
        worker.send_signal(signal.SIGCONT)
        assert (await asyncio.wait_for(worker.stdout.readline(), LIMIT)).strip() == b"failed True"
    finally:
        if worker.returncode is None:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
        await worker.wait()
    assert (await guard_database.state(address)).do == "undo"


@pytest.mark.sampled(keep=1)
async def test_a_busy_process_keeps_its_transaction(guard_database: GuardDatabase) -> None:
    """A process that runs statements keeps it as well; the next transaction of its connection has its own limits."""
    address = guard_database.current = new_address()

    async def busy(sql: SqlSession) -> str:
        for _ in range(2):
            await guard_database.body("applied")(sql)
            await asyncio.sleep(1.2)
        return "done"

    outcome = await guard_database.guard.do(address, "h", busy, **clock(60), idle_limit=1.0)
    assert (outcome.kind, outcome.result) == ("done", "done")

    async def silent(sql: SqlSession) -> None:
        await guard_database.body("confirmed")(sql)
        await asyncio.sleep(1.8)

    assert (await guard_database.guard.confirm(address, silent, **clock(60))).kind == "done"
    state = await guard_database.state(address)
    assert (state.applied, state.confirmed) == (2, 1)
