"""Workers share the circuit breaker of a connection by a row of the ledger, and go on without one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities import circuit_breakers
from saga_activities.circuit_breakers import AdmittedAttempt, BreakerState, CircuitBreakers
from saga_activities.ledger import circuit_breakers as rows
from saga_activities.ledger.circuit_breakers import OpenBreaker
from saga_activities.ledger.tables import circuit_breaker_table
from saga_activities.needed_connections import NeededConnections
from saga_workers.ledger.run_ledger import RunLedger
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import Invocation
from sagas.settings import HttpService
from sagas.settings.circuit_breaker import CircuitBreaker

CALL = Invocation("http", {"connection": "crm"}, "key-1", "s-1", "charge", "do", 1)
DOWN = Outcome(
    "failed", failure=Failure("HttpStatus", "crm responded 503", {"status": 503, "body": "of one saga"}), attempt=1
)
DONE = Outcome.done()


@pytest.fixture(autouse=True)
def read_at_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breakers, "MAX_AGE", 0.0)


def worker(engine: AsyncEngine, *names: str, every: float = 3600.0) -> CircuitBreakers:
    """The circuit breakers of another worker, by default that of ``crm``."""
    settings = CircuitBreaker(minimum=2, probe_every=every)
    services = {
        name: HttpService(name=name, root=Path(), url_setting="http://127.0.0.1:9", circuit_breaker=settings)
        for name in names or ("crm",)
    }
    return CircuitBreakers(services, NeededConnections(lambda _: None), lambda: engine)


async def attempt(breakers: CircuitBreakers, outcome: Outcome) -> Outcome | None:
    """The outcome that the saga gets to know; None if the attempt is held back."""
    admitted = await breakers.admit(CALL, 1, 30.0)
    return None if isinstance(admitted, Outcome) else await breakers.ended(admitted, outcome)


async def begun(breakers: CircuitBreakers) -> AdmittedAttempt:
    admitted = await breakers.admit(CALL, 1, 30.0)
    assert isinstance(admitted, AdmittedAttempt)
    return admitted


async def state(breakers: CircuitBreakers) -> BreakerState:
    return (await breakers.states())["crm"]


async def let_time_pass(engine: AsyncEngine) -> None:
    """Let an hour pass, by the clock of the ledger's database."""
    probe_at = circuit_breaker_table.c.probe_at
    async with engine.begin() as connection:
        await connection.execute(sa.update(circuit_breaker_table).values(probe_at=probe_at - 3601.0))


async def test_two_workers_hold_their_attempts_and_make_one_at_a_time(database: AsyncEngine, ledger: RunLedger) -> None:
    first, second = worker(database), worker(database)
    assert await attempt(first, DOWN) == DOWN
    assert await attempt(second, DOWN) == DOWN  # each worker counts its own attempts
    opened = await attempt(first, DOWN)
    assert opened is not None
    assert (opened.charged, opened.kind) == (False, "failed")
    assert [await attempt(each, DONE) for each in (first, second)] == [None, None]
    assert await state(second) == "open"

    await let_time_pass(database)
    probe = await begun(second)
    assert [await attempt(each, DONE) for each in (first, second)] == [None, None]
    assert await state(first) == "half_open"
    failed = await second.ended(probe, DOWN)
    assert (failed.charged, failed.retry_after) == (False, 1.0)
    assert await state(first) == "open"
    assert await attempt(first, DONE) is None

    await let_time_pass(database)
    assert await attempt(first, Outcome("rejected", attempt=1, retryable=False)) is not None  # it has answered
    assert [await state(each) for each in (first, second)] == ["closed", "closed"]
    assert await attempt(second, DOWN) == DOWN
    assert await ledger.open_breakers() == []


@pytest.mark.parametrize(("every", "wait"), [(10.0, 11.0), (59.0, 60.0), (60.0, 1.0)])
async def test_a_call_that_has_probed_in_vain_comes_after_those_that_wait(
    database: AsyncEngine, ledger: RunLedger, every: float, wait: float
) -> None:
    breakers = worker(database, every=every)
    await attempt(breakers, DOWN)
    await attempt(breakers, DOWN)
    held = await breakers.admit(CALL, 1, 30.0)
    assert isinstance(held, Outcome)
    assert held.retry_after == 1.0
    await let_time_pass(database)
    failed = await attempt(breakers, DOWN)
    assert failed is not None
    assert failed.retry_after == wait
    assert len(await ledger.open_breakers()) == 1


async def test_an_attempt_of_a_killed_worker_is_followed_by_another(database: AsyncEngine, ledger: RunLedger) -> None:
    killed, other = worker(database), worker(database)
    await attempt(killed, DOWN)
    await attempt(killed, DOWN)
    await let_time_pass(database)
    await begun(killed)  # and nothing is heard of it any more
    assert await attempt(other, DONE) is None
    assert await state(other) == "half_open"
    await let_time_pass(database)
    assert await attempt(other, DONE) == DONE
    assert await ledger.open_breakers() == []


async def test_a_person_closes_it_during_an_attempt(database: AsyncEngine, ledger: RunLedger) -> None:
    first, second = worker(database), worker(database)
    await attempt(first, DOWN)
    await attempt(first, DOWN)
    [breaker] = await ledger.open_breakers()
    assert (breaker.kind, breaker.name) == ("circuit_breaker", "crm")
    assert "2 of the last 2 attempts failed, the last with 503 Service Unavailable;" in (breaker.reason or "")
    assert "of one saga" not in (breaker.reason or "")
    await let_time_pass(database)
    probe = await begun(second)
    assert await ledger.close_breaker("crm")
    assert not await ledger.close_breaker("crm")
    assert await attempt(first, DONE) == DONE
    assert not (await second.ended(probe, DOWN)).charged
    assert [await state(each) for each in (first, second)] == ["closed", "closed"]
    assert await attempt(second, DOWN) == DOWN


async def test_calls_that_wait_ask_again_soon_after_it_has_opened_again(
    database: AsyncEngine, ledger: RunLedger
) -> None:
    """A worker reads the row again after others have closed and opened the circuit breaker."""
    other = worker(database)
    for age, interval in ((timedelta(hours=1), 60.0), (timedelta(0), 1.0)):
        opened_at = await rows.current_time(database) - age
        await rows.insert_breaker(database, OpenBreaker("crm", opened_at, "it failed", due_in=3600.0))
        held = await other.admit(CALL, 1, 30.0)
        assert isinstance(held, Outcome)
        assert held.retry_after == interval
        assert await rows.close_breaker_of(database, "crm")


async def test_a_worker_has_its_own_while_the_ledger_does_not_answer(database: AsyncEngine, ledger: RunLedger) -> None:
    first, second = worker(database, every=0.0), worker(database, every=0.0)
    await rename(database, "saga_circuit_breaker", "hidden")
    await attempt(first, DOWN)
    opened = await attempt(first, DOWN)
    assert opened is not None
    assert not opened.charged
    probe = await begun(first)
    assert await attempt(first, DONE) is None  # one at a time
    assert await attempt(second, DOWN) == DOWN
    assert [await state(each) for each in (first, second)] == ["half_open", "closed"]

    await rename(database, "hidden", "saga_circuit_breaker")
    assert await state(first) != "closed"
    assert await state(second) != "closed"  # it is shared now
    await first.ended(probe, DONE)
    assert [await state(each) for each in (first, second)] == ["closed", "closed"]
    assert await ledger.open_breakers() == []


async def rename(engine: AsyncEngine, old: str, new: str) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"alter table {old} rename to {new}")


async def test_that_of_a_removed_connection_holds_nothing(database: AsyncEngine, ledger: RunLedger) -> None:
    first, renamed = worker(database), worker(database, "crm2")
    await attempt(first, DOWN)
    await attempt(first, DOWN)
    call = replace(CALL, arguments={"connection": "crm2"})
    assert isinstance(await renamed.admit(call, 1, 30.0), AdmittedAttempt)
    assert await renamed.states() == {"crm2": "closed"}
    assert await ledger.close_breaker("crm")


@pytest.mark.parametrize("how", ["is not due", "is claimed by another worker"])
async def test_an_attempt_that_another_connection_holds_does_not_use_up_the_turn_of_this_one(
    database: AsyncEngine, ledger: RunLedger, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    both = replace(CALL, guard=GuardSpec("shop"))
    held_by_time = how == "is not due"
    for name, due_in in (("crm", 0.0), ("shop", 3600.0 if held_by_time else 0.0)):
        await rows.insert_breaker(database, OpenBreaker(name, datetime.now(UTC), "it failed", due_in))
    claim_probe = rows.claim_probe

    async def claim(engine: AsyncEngine, name: str, seconds: float) -> bool:
        return name != "shop" and await claim_probe(engine, name, seconds)

    monkeypatch.setattr(rows, "claim_probe", claim)
    breakers = worker(database, "crm", "shop")
    held = await breakers.admit(both, 1, 30.0)
    assert isinstance(held, Outcome)
    assert await attempt(breakers, DONE) == DONE
    assert [breaker.name for breaker in await ledger.open_breakers()] == ["shop"]
