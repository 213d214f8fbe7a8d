"""`saga locks`: what a person reads, and the JSON that other programs read (rule 17)."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard.schema import create_tables as create_guard_tables
from saga_activities.locks.lock_table import LockTable
from saga_activities.locks.tables import create_tables
from tests.helpers.forked_commands import run_command

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def saga(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(words, folder)


@pytest.fixture
async def project(tmp_path: Path) -> Path:
    """A project with lock tables, which are empty."""
    (tmp_path / "saga.toml").write_text(
        f'[connections.shop]\nkind = "sql"\nurl = "sqlite:///{tmp_path}/shop.db"\n[ledger]\nconnection = "shop"\n'
    )
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    await create_guard_tables(engine)
    await create_tables(engine)
    await engine.dispose()
    return tmp_path


async def request(project: Path, requests: Sequence[tuple[str, list[str]]], seconds_ago: float) -> None:
    """Make these requests, one after the other; all of them, and what they were granted, are so old."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{project}/shop.db", isolation_level="AUTOCOMMIT")
    table, now = LockTable("shop", engine), time.time()
    for owner, keys in requests:
        outcome = await table.acquire(
            keys, owner=owner, holder=owner, workflow_id=owner, waits=True, scheduled_at=now, deadline=now + 30
        )
        assert outcome.kind == "done", outcome
    async with engine.connect() as connection:
        for column, name in (("acquired_at", "saga_lock"), ("since", "saga_lock_wait")):
            await connection.execute(text(f"update {name} set {column} = {column} - {seconds_ago}"))
    await engine.dispose()


async def test_owners_and_waiters_are_listed(project: Path) -> None:
    requests = [
        ("checkout-1", ["order-7"]),
        ("checkout-2", ["order-7", "customer-3"]),
        ("refund-1", ["order-7"]),
        ("evil\x1b[31m\nid", ["key\x1b]0;x\x07\n2"]),
    ]
    await request(project, requests, seconds_ago=130)

    listed = saga(project, "locks")
    assert (listed.returncode, listed.stderr) == (0, "")
    expected = [
        "customer-3  not held",
        "    checkout-2 waits for 2 min",
        r"key\x1b]0;x\x07\n2  held by evil\x1b[31m\nid for 2 min",
        "order-7  held by checkout-1 for 2 min",
        "    checkout-2 waits for 2 min",
        "    refund-1 waits for 2 min",
    ]
    assert listed.stdout.splitlines() == expected

    listed = saga(project, "-o", "json", "locks", "order-7")
    assert listed.returncode == 0
    [lock] = json.loads(listed.stdout)
    times = [lock.pop("since"), *(waiter.pop("since") for waiter in lock["waiters"])]
    assert all(re.fullmatch(TIME, time) for time in times)
    waiters = [{"saga_id": "checkout-2"}, {"saga_id": "refund-1"}]
    assert lock == {"key": "order-7", "owner": "checkout-1", "waiters": waiters}

    keys = [json.loads(line)["key"] for line in saga(project, "--jsonl", "locks").stdout.splitlines()]
    assert keys == ["customer-3", "key\x1b]0;x\x07\n2", "order-7"]


async def test_nothing_is_locked(project: Path) -> None:
    listed = saga(project, "locks")
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "nothing is locked\n", "")
    listed = saga(project, "-o", "json", "locks", "order-7")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(
    ("settings", "error", "advice"),
    [
        (
            "",
            "the project has no database for locks",
            'help: connection = "NAME" under [locks] or [ledger] in saga.toml',
        ),
        (
            '[connections.shop]\nkind = "sql"\nurl = "sqlite:///shop.db"\n[locks]\nconnection = "shop"\n',
            "the locks in the connection shop cannot be read: no such table: saga_lock",
            "help: saga setup",
        ),
    ],
    ids=["no database", "no tables"],
)
def test_without_lock_tables_the_error_says_what_to_do(tmp_path: Path, settings: str, error: str, advice: str) -> None:
    (tmp_path / "saga.toml").write_text(settings)
    for words in (("locks",), ("-o", "json", "locks")):
        listed = saga(tmp_path, *words)
        assert (listed.returncode, listed.stdout) == (1 if "shop" in error else 2, "")
        assert listed.stderr.splitlines() == [f"error: {error}", advice]
