"""COMMIT was sent and its response was lost: the guard rechecks instead of guessing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from saga_activities.guard import commit_wait, rules
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import POSTGRESQL_COMMIT, FaultProxy, fault_proxy
from tests.helpers.new_databases import new_database
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, open_guard_database

COMMIT = {"postgres": POSTGRESQL_COMMIT, "mariadb": b"\x03COMMIT"}
"""The protocol message: the bare keyword also occurs in READ COMMITTED."""


@pytest_asyncio.fixture(params=["postgres", "mariadb"])
async def behind_proxy(request: pytest.FixtureRequest) -> AsyncIterator[tuple[GuardDatabase, FaultProxy]]:
    server: DatabaseServer = request.getfixturevalue(f"{request.param}_server")
    async with fault_proxy(server.port) as proxy:
        opened = await open_guard_database(request.param, server.url(port=proxy.port))
        yield opened, proxy
        await opened.connections.close()


async def test_commit_succeeds_but_its_response_is_lost(behind_proxy: tuple[GuardDatabase, FaultProxy]) -> None:
    guard_database, proxy = behind_proxy
    address = guard_database.current = new_address()
    proxy.arm(COMMIT[guard_database.kind], "cut_after")
    outcome = await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())
    assert proxy.triggered == 1
    assert (outcome.kind, outcome.result) == ("done", {"effect": "applied"})
    assert (await guard_database.state(address)).applied == 1


async def test_commit_never_arrived(behind_proxy: tuple[GuardDatabase, FaultProxy]) -> None:
    guard_database, proxy = behind_proxy
    address = guard_database.current = new_address()
    proxy.arm(COMMIT[guard_database.kind], "cut_before")
    outcome = await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())
    assert (outcome.kind, outcome.infrastructure) == ("unknown", True)
    again = await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())
    assert again.kind == "done", "the retry's insert decides"
    assert (await guard_database.state(address)).applied == 1


async def test_every_operation_finds_its_row_again(behind_proxy: tuple[GuardDatabase, FaultProxy]) -> None:
    guard_database, proxy = behind_proxy
    guard, address = guard_database.guard, new_address()
    guard_database.current = address
    await guard.do(address, "h", guard_database.body("applied"), **clock())
    proxy.arm(COMMIT[guard_database.kind], "cut_after")
    assert (await guard.confirm(address, guard_database.body("confirmed"), **clock())).result == {"effect": "confirmed"}
    proxy.arm(COMMIT[guard_database.kind], "cut_after")
    undone = await guard.undo(
        address, guard_database.body("undone"), confirmed_body=guard_database.body("undone_confirmed"), **clock()
    )
    assert undone.result == {"effect": "undone_confirmed"}
    other = new_address()
    proxy.arm(COMMIT[guard_database.kind], "cut_after")
    assert (await guard.seal(other, **clock())).marker == "sealed"
    third = new_address()
    proxy.arm(COMMIT[guard_database.kind], "cut_after")
    assert (await guard.undo(third, guard_database.body("undone"), **clock())).marker == "nothing_to_undo"
    assert proxy.triggered == 4


async def test_connection_lost_before_commit_is_certain(behind_proxy: tuple[GuardDatabase, FaultProxy]) -> None:
    guard_database, proxy = behind_proxy
    address = guard_database.current = new_address()

    async def cut(sql: object) -> None:
        await guard_database.body("applied")(sql)  # pyright: ignore[reportArgumentType]
        proxy.cut()
        await guard_database.body("applied")(sql)  # pyright: ignore[reportArgumentType]

    outcome = await guard_database.guard.do(address, "h", cut, **clock())
    assert (outcome.kind, outcome.infrastructure) == ("failed", True)
    assert (await guard_database.state(address)).applied == 0


async def test_server_down_and_stale_connections(behind_proxy: tuple[GuardDatabase, FaultProxy]) -> None:
    guard_database, proxy = behind_proxy
    address = guard_database.current = new_address()
    proxy.refuse = True
    proxy.cut()
    outcome = await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())
    assert (outcome.kind, outcome.infrastructure) == ("failed", True)
    proxy.refuse = False
    assert (await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())).kind == "done"
    proxy.cut()  # the pool now holds a dead connection: the guard opens another
    assert (await guard_database.guard.undo(address, guard_database.body("undone"), **clock())).kind == "done"


@pytest.mark.sampled(keep=1)
async def test_a_commit_response_that_never_arrives(
    behind_proxy: tuple[GuardDatabase, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard_database, proxy = behind_proxy
    monkeypatch.setattr(commit_wait, "COMMIT_GRACE", 1.5)
    address = guard_database.current = new_address()
    proxy.arm(COMMIT[guard_database.kind], "swallow_answer")
    outcome = await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())
    assert outcome.kind == "done"
    assert (await guard_database.state(address)).applied == 1


async def test_without_the_recheck_a_committed_effect_is_unknown(
    behind_proxy: tuple[GuardDatabase, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the recheck, which reads the stored outcome, the effect is committed and the caller gets no result."""
    guard_database, proxy = behind_proxy
    address = guard_database.current = new_address()
    monkeypatch.setattr(rules, "stored_outcome", lambda *_: None)
    proxy.arm(COMMIT[guard_database.kind], "cut_after")
    outcome = await guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())
    assert outcome.kind == "unknown"
    assert (await guard_database.state(address)).applied == 1


SECONDS = 3.0
"""Seconds for which the COMMIT of the slow database works; the shortest time of a COMMIT is made less than that."""


@pytest_asyncio.fixture
async def slow(postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GuardDatabase]:
    """A database whose COMMIT checks something for seconds."""
    monkeypatch.setattr(commit_wait, "COMMIT_GRACE", 0.5)
    opened = await open_guard_database("postgres", new_database(postgres_server))
    await opened.rows(
        "create function check_slowly() returns trigger language plpgsql as "
        f"'begin perform pg_sleep({SECONDS}); return null; end'"
    )
    await opened.rows(
        "create constraint trigger slow after insert on effects deferrable initially deferred"
        " for each row execute function check_slowly()"
    )
    yield opened
    await opened.connections.close()


@pytest.mark.slow
async def test_a_commit_has_the_time_of_its_attempt(slow: GuardDatabase) -> None:
    address = slow.current = new_address()
    outcome = await slow.guard.do(address, "h", slow.body("applied"), **clock())
    assert (outcome.kind, outcome.result) == ("done", {"effect": "applied"})
    assert (await slow.guard.confirm(address, slow.body("confirmed"), **clock())).kind == "done"
    undone = await slow.guard.undo(
        address, slow.body("undone"), confirmed_body=slow.body("undone_confirmed"), **clock()
    )
    assert (undone.kind, undone.result) == ("done", {"effect": "undone_confirmed"})
    state = await slow.state(address)
    assert (state.applied, state.confirmed, state.undone_confirmed) == (1, 1, 1)


async def test_a_commit_that_exceeds_the_time_of_its_attempt_names_the_limit(slow: GuardDatabase) -> None:
    address = slow.current = new_address()
    outcome = await slow.guard.do(address, "h", slow.body("applied"), **clock(2.0))
    assert (outcome.kind, outcome.infrastructure) == ("unknown", True)
    assert outcome.failure is not None
    assert "which is what the `timeout` of the step left for COMMIT" in outcome.failure.message
    assert outcome.failure.message.endswith("set a longer `timeout`")
    assert (await slow.guard.seal(address, **clock())).marker == "sealed"
    assert (await slow.state(address)).applied == 0


async def test_a_commit_that_the_server_ends_names_the_limit(
    slow: GuardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_wait, "COMMIT_GRACE", 60.0)
    address = slow.current = new_address()
    outcome = await slow.guard.do(address, "h", slow.body("applied"), **clock(1.0))
    assert (outcome.kind, outcome.infrastructure) == ("unknown", True)
    assert outcome.failure is not None
    assert "due to transaction timeout; if the database needs longer" in outcome.failure.message
    assert outcome.failure.message.endswith("set a longer `timeout`")
