"""Two operations of one step at once: the second insert waits for the first transaction, and then the rows decide."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from saga_activities.guard.guard import Guard
from saga_activities.guard.postgresql import PostgresTransaction
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.transaction import RowOp, RowReason
from sagas.errors import Rejected
from sagas.protocol.outcomes import Outcome
from tests.integration.guard.conftest import GuardDatabase, clock, new_address


class Gate:
    """An action that stops in the middle of its transaction until it is let on."""

    def __init__(self, body: Any, then: Exception | None = None) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._body, self._then = body, then

    async def __call__(self, sql: SqlSession) -> Any:
        result = await self._body(sql)
        self.reached.set()
        await self.open.wait()
        if self._then is not None:
            raise self._then
        return result


async def settled(call: Any, guard_call: Any) -> Outcome:
    """The outcome after infrastructure failures are retried, as the platform does."""
    outcome = await call
    for _ in range(20):
        if not outcome.infrastructure:
            return outcome
        assert outcome.kind == "failed"
        assert outcome.failure is not None
        assert outcome.failure.type == "Infrastructure"
        outcome = await guard_call()
    raise AssertionError(f"still in trouble: {outcome}")


async def still_waiting(task: asyncio.Task[Any]) -> bool:
    await asyncio.wait({task}, timeout=0.3)
    return not task.done()


async def undo_waits(guard_database: GuardDatabase, then: Exception | None) -> tuple[Outcome, Outcome]:
    guard = guard_database.guard
    address = guard_database.current = new_address()
    gate = Gate(guard_database.body("applied"), then)
    doing = asyncio.create_task(guard.do(address, "h", gate, **clock()))
    await gate.reached.wait()

    def undo() -> Any:
        return guard.undo(address, guard_database.body("undone"), **clock())

    undoing = asyncio.create_task(undo())
    assert await still_waiting(undoing), "the undo must wait for the open action"
    gate.open.set()
    did = await doing
    return did, await settled(undoing, undo)


async def test_an_undo_waits_for_an_open_action(server_guard_database: GuardDatabase) -> None:
    did, undid = await undo_waits(server_guard_database, None)
    assert (did.kind, undid.kind, undid.marker) == ("done", "done", None)
    state = await server_guard_database.state(server_guard_database.current)
    assert (state.applied, state.undone) == (1, 1)


async def test_an_undo_waits_for_a_rejected_action(server_guard_database: GuardDatabase) -> None:
    did, undid = await undo_waits(server_guard_database, Rejected("no"))
    assert (did.kind, undid.marker) == ("rejected", "nothing_to_undo")
    late = await server_guard_database.guard.do(
        server_guard_database.current, "h", server_guard_database.body("applied"), **clock()
    )
    assert late.kind == "late"
    assert (await server_guard_database.state(server_guard_database.current)).applied == 0


async def test_an_undo_waits_at_every_isolation_level(levels: GuardDatabase) -> None:
    did, undid = await undo_waits(levels, None)
    assert (did.kind, undid.kind, undid.marker) == ("done", "done", None)
    state = await levels.state(levels.current)
    assert (state.applied, state.undone) == (1, 1)


async def test_a_serialization_failure_is_infrastructure(levels: GuardDatabase) -> None:
    """PostgreSQL's waiter gets 40001 above READ COMMITTED: an infrastructure failure, never a business outcome."""
    guard = levels.guard
    address = levels.current = new_address()
    gate = Gate(levels.body("applied"))
    doing = asyncio.create_task(guard.do(address, "h", gate, **clock()))
    await gate.reached.wait()
    undoing = asyncio.create_task(guard.undo(address, levels.body("undone"), **clock()))
    assert await still_waiting(undoing)
    gate.open.set()
    await doing
    outcome = await undoing
    if levels.kind == "postgres" and guard.isolation != "READ COMMITTED":
        assert (outcome.kind, outcome.infrastructure) == ("failed", True)
    else:
        assert outcome.kind == "done" or outcome.infrastructure


async def test_an_action_waits_for_a_seal(server_guard_database: GuardDatabase) -> None:
    """The seal's transaction is held open by hand, between its insert and its COMMIT."""
    guard_database, address = server_guard_database, new_address()
    guard_database.current = address
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql("BEGIN")
        await connection.exec_driver_sql(
            "insert into saga_guard (saga_id, step, generation, op, reason, created_at)"
            f" values ('{address.saga_id}', '{address.entry}', 1, 'do', 'undo', 0)"
        )

        def do() -> Any:
            return guard_database.guard.do(address, "h", guard_database.body("applied"), **clock())

        doing = asyncio.create_task(do())
        assert await still_waiting(doing), "the action must wait for the open seal"
        await connection.exec_driver_sql("COMMIT")
    assert (await settled(doing, do)).kind == "late"
    assert (await guard_database.state(address)).applied == 0


async def test_concurrent_deliveries_have_one_effect(guard_database: GuardDatabase) -> None:
    """Ten concurrent deliveries of every operation, on every database."""
    guard = guard_database.guard
    for _ in range(5):
        address = guard_database.current = new_address()
        dos = [lambda a=address: guard.do(a, "h", guard_database.body("applied"), **clock())] * 5
        undos = [lambda a=address: guard.undo(a, guard_database.body("undone"), **clock())] * 3
        seals = [lambda a=address: guard.seal(a, **clock())] * 2
        calls = [*dos[:3], *undos[:1], *seals, *undos[1:], *dos[3:]]
        outcomes = await asyncio.gather(*(settled(call(), call) for call in calls))
        state = await guard_database.state(address)
        assert state.applied == state.undone <= 1, outcomes
        assert {outcome.kind for outcome in outcomes} <= {"done", "late"}, outcomes


async def test_concurrent_confirm_and_undo(levels: GuardDatabase) -> None:
    guard_database, guard = levels, levels.guard
    for _ in range(10):
        address = guard_database.current = new_address()
        await guard.do(address, "h", guard_database.body("applied"), **clock())

        def confirm(a: Any = address) -> Any:
            return guard.confirm(a, guard_database.body("confirmed"), **clock())

        def undo(a: Any = address) -> Any:
            return guard.undo(a, guard_database.body("undone"), **clock())

        confirmed, undone = await asyncio.gather(settled(confirm(), confirm), settled(undo(), undo))
        assert (confirmed.kind, undone.marker) in (("done", "confirmed"), ("late", None))
        state = await guard_database.state(address)
        assert state.confirmed + state.undone == 1


async def test_concurrent_undos_of_a_confirmed_step(levels: GuardDatabase) -> None:
    """The row `confirm` is committed long ago, so no undo waits for its fence."""
    guard = levels.guard
    address = levels.current = new_address()
    await guard.do(address, "h", levels.body("applied"), **clock())
    await guard.confirm(address, levels.body("confirmed"), **clock())
    gate = Gate(levels.body("undone_confirmed"))

    def undo(body: Any) -> Any:
        return guard.undo(address, levels.body("undone"), confirmed_body=body, **clock())

    first = asyncio.create_task(undo(gate))
    await gate.reached.wait()
    second = asyncio.create_task(undo(levels.body("undone_confirmed")))
    assert await still_waiting(second)
    gate.open.set()
    reported = await settled(second, lambda: undo(levels.body("undone_confirmed")))
    assert (await first).result == reported.result == {"effect": "undone_confirmed"}
    assert (await levels.state(address)).undone_confirmed == 1


async def race_confirm_against_open_undo(guard_database: GuardDatabase) -> tuple[bool, int]:
    """True if a confirm had to wait for an undo in flight, and how many of the two took effect."""
    guard = guard_database.guard
    address = guard_database.current = new_address()
    await guard.do(address, "h", guard_database.body("applied"), **clock())
    gate = Gate(guard_database.body("undone"))
    undoing = asyncio.create_task(guard.undo(address, gate, **clock()))
    await gate.reached.wait()
    confirming = asyncio.create_task(guard.confirm(address, guard_database.body("confirmed"), **clock()))
    waited = await still_waiting(confirming)
    gate.open.set()
    await asyncio.gather(undoing, confirming)
    state = await guard_database.state(address)
    return waited, state.confirmed + state.undone


async def test_a_confirm_waits_at_the_fence(server_guard_database: GuardDatabase) -> None:
    assert await race_confirm_against_open_undo(server_guard_database) == (True, 1)


@pytest.mark.parametrize("server_guard_database", ["postgres"], indirect=True)
async def test_without_the_fence_row_confirm_and_undo_both_take_effect(
    server_guard_database: GuardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an undo that does not insert the `confirm` row. (MariaDB's locking read would still wait for the open `undo`
    row.)"""
    real = PostgresTransaction.insert

    async def no_fence(self: PostgresTransaction, op: RowOp, reason: RowReason, **more: Any) -> bool:
        if (op, reason) == ("confirm", "undo"):
            return True
        return await real(self, op, reason, **more)

    monkeypatch.setattr(PostgresTransaction, "insert", no_fence)
    assert await race_confirm_against_open_undo(server_guard_database) == (False, 2)


async def test_without_the_waiting_insert_an_effect_leaks(
    server_guard_database: GuardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an undo that looks first, and inserts only what is not there (check, then act)."""
    guard_database, address = server_guard_database, new_address()
    guard_database.current = address

    async def undo_that_only_looks(self: Guard, *_: Any, **__: Any) -> Outcome:
        guard_rows = await guard_database.rows("select op from saga_guard where saga_id = :s", s=address.saga_id)
        return Outcome.done(marker=None if guard_rows else "nothing_to_undo")

    monkeypatch.setattr(Guard, "undo", undo_that_only_looks)
    gate = Gate(guard_database.body("applied"))
    doing = asyncio.create_task(guard_database.guard.do(address, "h", gate, **clock()))
    await gate.reached.wait()
    reported = await guard_database.guard.undo(address, guard_database.body("undone"), **clock())
    gate.open.set()
    await doing
    assert reported.marker == "nothing_to_undo"
    assert (await guard_database.state(address)).applied == 1, "nothing to undo, and the effect is there: a leak"


async def test_a_deadlock_is_infrastructure(server_guard_database: GuardDatabase) -> None:
    guard_database = server_guard_database
    await guard_database.rows("delete from effects where kind in ('left', 'right')")
    for kind in ("left", "right"):
        await guard_database.rows(
            f"insert into effects values ('{kind}', '{kind}', 1, '{kind}', 0)",
        )
    both = asyncio.Barrier(2)

    def crossing(first: str, second: str) -> Any:
        async def act(sql: SqlSession) -> None:
            await sql.execute("update effects set at_time = 1 where kind = :kind", kind=first)
            await both.wait()
            try:
                await sql.execute("update effects set at_time = 2 where kind = :kind", kind=second)
            except Exception as error:
                raise Rejected("dressed up as a business answer") from error

        return act

    outcomes = await asyncio.gather(
        guard_database.guard.do(new_address(), "h", crossing("left", "right"), **clock()),
        guard_database.guard.do(new_address(), "h", crossing("right", "left"), **clock()),
    )
    assert sorted(outcome.kind for outcome in outcomes) == ["done", "failed"]
    assert [o.infrastructure for o in outcomes if o.kind == "failed"] == [True]
