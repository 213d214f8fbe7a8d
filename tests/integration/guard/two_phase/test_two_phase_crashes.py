"""A worker dies or freezes before each statement of each operation; a database with prepared transactions restarts."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.helpers.database_servers import DatabaseServer, mariadb, postgres
from tests.helpers.fault_proxy import FaultProxy, fault_proxy
from tests.helpers.sampling import every_nth
from tests.integration.guard.conftest import clock, open_guard_database
from tests.integration.guard.two_phase.conftest import TwoPhaseDatabase, open_two_phase
from tests.integration.guard.two_phase.stopped_operation import Kind, StoppedOperation

FEWEST_STATEMENTS: dict[Kind, int] = {"do": 10, "undo": 8, "confirm": 7, "seal": 5}
PREPARE_STATEMENT = {"postgresql": 10, "mariadb": 13}
"""The number of a statement of `do` in its transaction, after the effect."""

MOST_STATEMENTS = 40
"""How often an operation is killed at least, on any database, and at most, until it ends before that."""


async def another(shop: TwoPhaseDatabase) -> TwoPhaseDatabase:
    """Another product and another saga in the database of ``shop``."""
    return await open_two_phase(shop.database)


def stopped(shop: TwoPhaseDatabase, kind: Kind, statement: int, sent: signal.Signals, seconds: float = 10.0):
    return StoppedOperation(kind, shop.database.url, shop.at, shop.sku, statement, sent, seconds)


async def killed(shop: TwoPhaseDatabase, kind: Kind, statement: int) -> bool:
    """Kill ``kind`` before a statement; False: it has ended before that."""
    return await stopped(shop, kind, statement, signal.SIGKILL).ended() is None


async def expect_applied(shop: TwoPhaseDatabase) -> None:
    """The saga goes on: the attempt and the confirm are repeated, and the effect is there once."""
    first = await shop.do()
    assert first.kind == "done"
    assert (await shop.do()).result == first.result
    assert (await shop.guard.confirm(shop.at, **clock())).kind == "done"
    assert (await shop.do()).result == first.result
    assert await shop.stock() == 9


async def expect_nothing(shop: TwoPhaseDatabase) -> None:
    """The saga goes back: nothing is there, nothing is locked, and no attempt is accepted any more."""
    sealed = await shop.guard.seal(shop.at, **clock())
    if sealed.marker != "sealed":
        assert (await shop.guard.undo(shop.at, known_done=True, **clock())).kind == "done"
    assert not await shop.is_prepared()
    assert await shop.stock() == 10
    assert (await shop.do()).kind == "late"
    await shop.database.rows("update prepared_stock set left_over = 10 where sku = :sku", sku=shop.sku)


async def test_a_worker_is_killed_before_each_statement_of_do(shop: TwoPhaseDatabase) -> None:
    async def kill(two_phase_database: TwoPhaseDatabase, statement: int) -> bool:
        was_killed = await killed(two_phase_database, "do", statement)
        await (expect_applied if statement % 2 else expect_nothing)(two_phase_database)
        return was_killed

    await _kill_everywhere(shop, "do", kill)


async def test_a_worker_is_killed_before_each_statement_of_confirm(shop: TwoPhaseDatabase) -> None:
    async def kill(two_phase_database: TwoPhaseDatabase, statement: int) -> bool:
        first = await two_phase_database.do()
        was_killed = await killed(two_phase_database, "confirm", statement)
        late = await two_phase_database.do()  # a late attempt, also between the commit and its row
        assert late.result == first.result
        await expect_applied(two_phase_database)
        return was_killed

    await _kill_everywhere(shop, "confirm", kill)


@pytest.mark.slow
async def test_a_worker_is_killed_before_each_statement_of_undo(shop: TwoPhaseDatabase) -> None:
    async def kill(two_phase_database: TwoPhaseDatabase, statement: int) -> bool:
        await two_phase_database.do()
        was_killed = await killed(two_phase_database, "undo", statement)
        assert (await two_phase_database.guard.undo(two_phase_database.at, known_done=True, **clock())).kind == "done"
        await expect_nothing(two_phase_database)
        return was_killed

    await _kill_everywhere(shop, "undo", kill)


@pytest.mark.slow
async def test_a_worker_is_killed_before_each_statement_of_seal(shop: TwoPhaseDatabase) -> None:
    async def kill(two_phase_database: TwoPhaseDatabase, statement: int) -> bool:
        was_killed = await killed(two_phase_database, "seal", statement)
        await expect_nothing(two_phase_database)
        return was_killed

    await _kill_everywhere(shop, "seal", kill)


async def _kill_everywhere(
    shop: TwoPhaseDatabase, kind: Kind, kill: Callable[[TwoPhaseDatabase, int], Awaitable[bool]]
) -> None:
    """Kill ``kind`` before its statement 1, 2 … until it ends before that; every time another saga goes on after it.

    In `make test` the databases take turns with the statements.
    """
    turn = list(PREPARE_STATEMENT).index(shop.database.engine.dialect.name)
    for statement in every_nth(2, range(1, MOST_STATEMENTS + 1), turn=turn):
        if not await kill(await another(shop), statement):
            assert statement > FEWEST_STATEMENTS[kind]
            return
    raise AssertionError(f"{kind} has more than {MOST_STATEMENTS} statements")


async def test_an_undo_waits_for_a_frozen_attempt_that_then_prepares(shop: TwoPhaseDatabase) -> None:
    """The attempt is frozen in its transaction, right before it prepares."""
    last = PREPARE_STATEMENT[shop.database.engine.dialect.name]
    frozen = stopped(shop, "do", last, signal.SIGSTOP, 60.0)
    assert await frozen.frozen()
    undo = await shop.guard.undo(shop.at, known_done=True, **clock(3))
    assert undo.infrastructure, "nothing can be decided while the attempt holds the lock"
    frozen.resume()
    assert await frozen.ended() == "done"
    await expect_nothing(shop)


async def test_a_frozen_attempt_wakes_up_after_the_undo(shop: TwoPhaseDatabase) -> None:
    """The server ends the transaction of the frozen attempt with its time; awake, the attempt prepares nothing."""
    last = PREPARE_STATEMENT[shop.database.engine.dialect.name]
    frozen = stopped(shop, "do", last, signal.SIGSTOP, 2.0)
    assert await frozen.frozen()
    undo = await shop.guard.undo(shop.at, known_done=True, **clock(20))
    assert undo.kind == "done"
    frozen.resume()
    assert await frozen.ended() in ("failed", "unknown")
    await expect_nothing(shop)


@pytest.mark.parametrize("start", [postgres, mariadb], ids=["postgres", "mariadb"])
async def test_a_database_restarts_with_prepared_transactions(
    start: Callable[[], AbstractContextManager[DatabaseServer]],
) -> None:
    with start() as server:
        database = await open_guard_database(server.kind, server.url())
        first, second, third = [await open_two_phase(database) for _ in range(3)]
        for shop in (first, second, third):
            assert (await shop.do()).kind == "done"
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await database.engine.dispose()  # the pool's connections are those to the killed server
        assert [await shop.is_prepared() for shop in (first, second, third)] == [True] * 3
        await expect_applied(first)
        await expect_nothing(second)
        assert (await third.guard.seal(third.at, **clock())).kind == "done"
        await expect_applied(third)
        await database.connections.close()


PREPARE = {"postgres": b"PREPARE TRANSACTION", "mariadb": b"XA PREPARE"}
COMMIT = {"postgres": b"COMMIT PREPARED", "mariadb": b"XA COMMIT"}


@pytest_asyncio.fixture(params=["postgres", "mariadb"])
async def behind_proxy(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, TwoPhaseDatabase, FaultProxy]]:
    server: DatabaseServer = request.getfixturevalue(f"{request.param}_server")
    async with fault_proxy(server.port) as proxy:
        opened = await open_guard_database(request.param, server.url(port=proxy.port))
        yield request.param, await open_two_phase(opened), proxy
        await opened.connections.close()


async def test_the_response_to_prepare_is_lost(behind_proxy: tuple[str, TwoPhaseDatabase, FaultProxy]) -> None:
    kind, shop, proxy = behind_proxy
    proxy.arm(PREPARE[kind], "cut_after")
    assert (await shop.do()).kind == "done"
    assert proxy.triggered == 1
    await expect_applied(shop)


async def test_prepare_never_arrives(behind_proxy: tuple[str, TwoPhaseDatabase, FaultProxy]) -> None:
    kind, shop, proxy = behind_proxy
    proxy.arm(PREPARE[kind], "cut_before")
    assert (await shop.do()).kind == "unknown"
    await expect_applied(shop)


@pytest.mark.parametrize("cut", ["cut_before", "cut_after"])
async def test_the_response_to_the_commit_is_lost(
    behind_proxy: tuple[str, TwoPhaseDatabase, FaultProxy], cut: str
) -> None:
    kind, shop, proxy = behind_proxy
    first = await shop.do()
    proxy.arm(COMMIT[kind], cut)  # pyright: ignore[reportArgumentType]
    outcome = await shop.guard.confirm(shop.at, **clock())
    assert (outcome.kind, outcome.infrastructure) == ("unknown", True)
    assert (await shop.do()).result == first.result
    await expect_applied(shop)


async def test_generations_and_long_keys_have_transactions_of_their_own(shop: TwoPhaseDatabase) -> None:
    at = dataclasses.replace(shop.at, saga_id=f"{uuid4()}-{'ü' * 300}%'\"")
    other = dataclasses.replace(at, generation=2)
    body = shop.take
    assert (await shop.guard.do(at, "h", body, **clock())).kind == "done"
    assert (await shop.guard.undo(at, known_done=True, **clock())).kind == "done"
    assert (await shop.guard.do(other, "h", body, **clock())).kind == "done"
    assert (await shop.guard.confirm(other, **clock())).kind == "done"
    assert await shop.stock() == 9
