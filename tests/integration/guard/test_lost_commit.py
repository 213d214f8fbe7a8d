"""COMMIT was sent and its answer never came: the guard asks again instead of guessing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from saga_activities.guard import rules, transaction_runner
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import FaultProxy, fault_proxy
from tests.integration.guard.conftest import Laboratory, clock, new_address, open_laboratory

COMMIT = {"postgres": b"COMMIT\0", "mariadb": b"\x03COMMIT"}
"""The message itself: the bare word is also in READ COMMITTED."""


@pytest_asyncio.fixture(params=["postgres", "mariadb"])
async def behind_proxy(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Laboratory, FaultProxy]]:
    server: DatabaseServer = request.getfixturevalue(f"{request.param}_server")
    async with fault_proxy(server.port) as proxy:
        opened = await open_laboratory(request.param, server.url(port=proxy.port))
        yield opened, proxy
        await opened.connections.close()


async def test_committed_but_the_answer_got_lost(behind_proxy: tuple[Laboratory, FaultProxy]) -> None:
    laboratory, proxy = behind_proxy
    address = laboratory.current = new_address()
    proxy.arm(COMMIT[laboratory.kind], "cut_after")
    outcome = await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())
    assert proxy.triggered == 1
    assert (outcome.kind, outcome.result) == ("done", {"effect": "applied"})
    assert (await laboratory.state(address)).applied == 1


async def test_commit_never_arrived(behind_proxy: tuple[Laboratory, FaultProxy]) -> None:
    laboratory, proxy = behind_proxy
    address = laboratory.current = new_address()
    proxy.arm(COMMIT[laboratory.kind], "cut_before")
    outcome = await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())
    assert (outcome.kind, outcome.infrastructure) == ("unknown", True)
    again = await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())
    assert again.kind == "done", "the retry's insert decides"
    assert (await laboratory.state(address)).applied == 1


async def test_every_operation_finds_its_row_again(behind_proxy: tuple[Laboratory, FaultProxy]) -> None:
    laboratory, proxy = behind_proxy
    guard, address = laboratory.guard, new_address()
    laboratory.current = address
    await guard.do(address, "h", laboratory.body("applied"), **clock())
    proxy.arm(COMMIT[laboratory.kind], "cut_after")
    assert (await guard.confirm(address, laboratory.body("confirmed"), **clock())).result == {"effect": "confirmed"}
    proxy.arm(COMMIT[laboratory.kind], "cut_after")
    undone = await guard.undo(
        address, laboratory.body("undone"), confirmed_body=laboratory.body("undone_confirmed"), **clock()
    )
    assert undone.result == {"effect": "undone_confirmed"}
    other = new_address()
    proxy.arm(COMMIT[laboratory.kind], "cut_after")
    assert (await guard.seal(other, **clock())).marker == "sealed"
    third = new_address()
    proxy.arm(COMMIT[laboratory.kind], "cut_after")
    assert (await guard.undo(third, laboratory.body("undone"), **clock())).marker == "nothing_to_undo"
    assert proxy.triggered == 4


async def test_connection_lost_before_commit_is_certain(behind_proxy: tuple[Laboratory, FaultProxy]) -> None:
    laboratory, proxy = behind_proxy
    address = laboratory.current = new_address()

    async def cut(sql: object) -> None:
        await laboratory.body("applied")(sql)  # pyright: ignore[reportArgumentType]
        proxy.cut()
        await laboratory.body("applied")(sql)  # pyright: ignore[reportArgumentType]

    outcome = await laboratory.guard.do(address, "h", cut, **clock())
    assert (outcome.kind, outcome.infrastructure) == ("failed", True)
    assert (await laboratory.state(address)).applied == 0


async def test_server_down_and_stale_connections(behind_proxy: tuple[Laboratory, FaultProxy]) -> None:
    laboratory, proxy = behind_proxy
    address = laboratory.current = new_address()
    proxy.refuse = True
    proxy.cut()
    outcome = await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())
    assert (outcome.kind, outcome.infrastructure) == ("failed", True)
    proxy.refuse = False
    assert (await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())).kind == "done"
    proxy.cut()  # the pool now holds a dead connection: the guard opens another, and nobody notices
    assert (await laboratory.guard.undo(address, laboratory.body("undone"), **clock())).kind == "done"


async def test_an_answer_that_never_comes(
    behind_proxy: tuple[Laboratory, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory, proxy = behind_proxy
    monkeypatch.setattr(transaction_runner, "COMMIT_GRACE", 1.5)
    address = laboratory.current = new_address()
    proxy.arm(COMMIT[laboratory.kind], "swallow_answer")
    outcome = await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())
    assert outcome.kind == "done"
    assert (await laboratory.state(address)).applied == 1


async def test_without_asking_again_a_done_effect_is_unknown(
    behind_proxy: tuple[Laboratory, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule taken out: the effect is there, and the caller is not told."""
    laboratory, proxy = behind_proxy
    address = laboratory.current = new_address()
    monkeypatch.setattr(rules, "stored_outcome", lambda *_: None)
    proxy.arm(COMMIT[laboratory.kind], "cut_after")
    outcome = await laboratory.guard.do(address, "h", laboratory.body("applied"), **clock())
    assert outcome.kind == "unknown"
    assert (await laboratory.state(address)).applied == 1
