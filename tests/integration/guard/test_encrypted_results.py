"""With `[codec]` the guard's rows have results and rejections encrypted; later attempts get them in clear."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Failure
from sagas.settings import SqlConnection
from tests.integration.guard.conftest import GuardDatabase, clock, database_url, new_address, open_guard_database

pytestmark = pytest.mark.sampled(turns="encrypted")
RESULT = {"card": "kanari"}
CHANGED = "a stored value of this saga was changed in its database"


def new_key() -> str:
    return secrets.token_hex(32)


@pytest_asyncio.fixture(params=["postgres", "mariadb", "sqlite"])
async def encrypted(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GuardDatabase]:
    url = database_url(request.param, request, tmp_path)
    opened = await open_guard_database(request.param, url, codec_key=new_key())
    yield opened
    await opened.connections.close()


def connected(url: str, codec_key: str | None) -> DatabaseConnections:
    settings: dict[str, Any] = {"name": "shop", "url": url, "codec_key": codec_key}
    return DatabaseConnections([SqlConnection(**settings)])


async def act(_: SqlSession) -> Any:
    return RESULT


async def stored(database: GuardDatabase, address: EntryKey, op: str = "do") -> str | None:
    rows = await database.rows(
        "select result from saga_guard where saga_id = :s and op = :op", s=address.saga_id, op=op
    )
    return rows[0][0]


async def do(guard: Guard, address: EntryKey) -> Any:
    return await guard.do(address, None, act, **clock())


async def test_a_result_is_stored_encrypted_and_read_in_clear(encrypted: GuardDatabase) -> None:
    address = new_address()
    assert (await do(encrypted.guard, address)).result == RESULT
    row = await stored(encrypted, address)
    assert row is not None
    assert "kanari" not in row
    assert (await do(encrypted.guard, address)).result == RESULT


async def test_a_rejection_is_stored_encrypted_and_read_in_clear(encrypted: GuardDatabase) -> None:
    address = new_address()
    failure = Failure("Rejected", "kanari has no money", {"card": "kanari"})
    await encrypted.guard.reject(address, failure, **clock())
    assert "kanari" not in str(await stored(encrypted, address))
    rejected = await do(encrypted.guard, address)
    assert (rejected.kind, rejected.failure) == ("rejected", failure)


async def test_markers_without_values_are_readable_without_the_key(encrypted: GuardDatabase) -> None:
    address = new_address()
    assert (await encrypted.guard.undo(address, act, **clock())).marker == "nothing_to_undo"
    assert await stored(encrypted, address, "undo") == '{"saga:marker":"NOTHING_TO_UNDO"}'


@pytest.mark.parametrize("codec_key", [None, new_key()], ids=["no key", "another key"])
async def test_a_worker_without_the_key_waits_for_it(encrypted: GuardDatabase, codec_key: str | None) -> None:
    address = new_address()
    await do(encrypted.guard, address)
    connections = connected(encrypted.url, codec_key)
    try:
        guard = connections.guard("shop")
        for outcome in (await do(guard, address), await guard.undo(address, act, **clock())):
            assert (outcome.infrastructure, outcome.retryable) == (True, True)
            assert "[codec] key" in str(outcome.failure)
    finally:
        await connections.close()


RESERVED = [
    {"saga:encrypted": {"key": "x", "data": "eA=="}},
    {"saga:encrypted": {"key": "0123456789ab", "data": "eA=="}},
    {"saga:marker": "elsewhere"},
    {"saga:value": 1},
]


@pytest.mark.parametrize("with_key", [True, False], ids=["codec", "no codec"])
async def test_a_result_that_looks_like_an_entry_of_the_guard_is_a_result(
    encrypted: GuardDatabase, with_key: bool
) -> None:
    plain = connected(encrypted.url, None)
    guard = encrypted.guard if with_key else plain.guard("shop")
    try:
        for result in RESERVED:
            address = new_address()

            async def returns(_: SqlSession, result: Any = result) -> Any:
                return result

            for outcome in (
                await guard.do(address, None, returns, **clock()),
                await guard.do(address, None, returns, **clock()),
                await guard.undo(address, returns, known_done=True, **clock()),
                await guard.undo(address, returns, known_done=True, **clock()),
            ):
                assert (outcome.kind, outcome.result, outcome.marker) == ("done", result, None)
    finally:
        await plain.close()


@pytest.mark.parametrize(
    "forged",
    [
        '{"saga:encrypted":{"key":"x","data":"eA=="}}',
        '{"saga:encrypted":{"key":"{key}","data":"eA=="}}',
        '{"saga:encrypted":1}',
        '{"saga:marker":"bought"}',
        "{",
    ],
)
async def test_a_changed_row_parks_the_step_and_its_undo(encrypted: GuardDatabase, forged: str) -> None:
    address = new_address()
    await do(encrypted.guard, address)
    key_id = json.loads(str(await stored(encrypted, address)))["saga:encrypted"]["key"]
    async with encrypted.engine.connect() as connection:
        change = text("update saga_guard set result = :forged where saga_id = :s")
        await connection.execute(change, {"forged": forged.replace("{key}", key_id), "s": address.saga_id})
    again = await do(encrypted.guard, address)
    assert (again.kind, again.retryable, again.park_reason) == ("failed", False, CHANGED)
    if forged.startswith('{"saga:encrypted"'):
        undone = await encrypted.guard.undo(address, act, known_done=True, **clock())
        assert (undone.kind, undone.retryable, undone.park_reason) == ("failed", False, CHANGED)


async def test_results_in_clear_and_of_an_earlier_key_are_read(encrypted: GuardDatabase) -> None:
    plain = connected(encrypted.url, None)
    earlier, later = new_key(), new_key()
    first = connected(encrypted.url, earlier)
    both = connected(encrypted.url, f"{later} {earlier}")
    try:
        for connections in (plain, first):
            address = new_address()
            await do(connections.guard("shop"), address)
            assert (await do(both.guard("shop"), address)).result == RESULT
    finally:
        for connections in (plain, first, both):
            await connections.close()
