"""The database ends the transaction itself, and the action catches the error: nothing it does afterwards is written."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.dispatcher import Dispatcher
from saga_activities.guard.ended_transactions import TransactionEnded
from saga_activities.guard.postgresql import PostgresSqlSession
from saga_activities.guard.sql_session import SqlSession
from saga_activities.http import HttpConnections
from saga_activities.participants import CommandCall, ParticipantCommands
from sagas import Command, participant
from sagas.actions.batch import BatchStep, Item
from sagas.actions.consumers import HANDLER_ATTRIBUTE
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.step import Step
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, idempotency_key
from tests.helpers.database_servers import mariadb
from tests.helpers.new_databases import new_mariadb_database, new_url
from tests.integration.guard.conftest import new_attempt
from tests.integration.guard.ended_transactions import (
    ALL_ENDS,
    ENDS,
    LASTS,
    STEPS,
    EndingShop,
    carry_out,
    new_id,
    open_ending_shop,
    rows_of,
)

CAUGHT = ("write", "end", "write", "construct", "many", "read")


@pytest_asyncio.fixture(scope="module")
async def shops() -> AsyncIterator[dict[str, EndingShop]]:
    opened: dict[str, EndingShop] = {}
    yield opened
    for shop in opened.values():
        await shop.close()


@pytest_asyncio.fixture
async def shop(
    shops: dict[str, EndingShop], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> EndingShop:
    kind: str = request.param
    if kind not in shops:
        shops[kind] = await open_ending_shop(kind, await new_url(kind, request, tmp_path_factory.mktemp("ended")))
    shops[kind].left = 1000
    shops[kind].errors.clear()
    return shops[kind]


def actions_of(shop: EndingShop) -> ActionBodies:
    @action("ended.one", connection="shop")
    async def one(step: Step, how: str, steps: list[str], last: str) -> Any:
        return await carry_out(shop, step.sql, step.saga_id, how, steps, last)

    @action("ended.all", connection="shop", batch=True)
    async def all_at_once(step: BatchStep, items: list[Item]) -> list[Any]:
        return [
            await carry_out(shop, step.sql, item.saga_id, item["how"], item["steps"], item["last"]) for item in items
        ]

    return ActionBodies(Actions([getattr(function, ACTION_ATTRIBUTE) for function in (one, all_at_once)]))


def call(
    how: str, steps: Sequence[str], last: str, uses: str = "ended.one", op: str = "do", **guard: Any
) -> Invocation:
    saga_id = new_id()
    key = idempotency_key(saga_id, "charge", 1, "undo" if op == "undo" else "")
    arguments = {"how": how, "steps": list(steps), "last": last}
    return Invocation(uses, arguments, key, saga_id, "charge", op, 1, 30.0, GuardSpec("shop", **guard), saga="order")


async def perform(shop: EndingShop, invocation: Invocation) -> Outcome:
    dispatcher = Dispatcher(actions_of(shop), shop.database.connections, HttpConnections({}))
    return await dispatcher.perform(invocation, new_attempt())


async def written(shop: EndingShop, saga_id: str) -> int:
    rows = await shop.database.rows("select count(*) from trace_row where id = :id", id=saga_id)
    return int(rows[0][0])


async def ops(shop: EndingShop, saga_id: str) -> list[str]:
    rows = await shop.database.rows("select op from saga_guard where saga_id = :id order by op", id=saga_id)
    return [row[0] for row in rows]


def refusals(shop: EndingShop) -> int:
    return sum(isinstance(error, TransactionEnded) for error in shop.errors)


EACH_END = pytest.mark.parametrize(("shop", "how"), ALL_ENDS, indirect=["shop"])


@pytest.mark.sampled(turns="last")
@EACH_END
@pytest.mark.parametrize("last", LASTS)
async def test_an_action_that_catches_the_error(shop: EndingShop, how: str, last: str) -> None:
    """The outcome is that of the original error; a rejection stays one unless the database was at fault."""
    invocation = call(how, CAUGHT, last)
    outcome = await perform(shop, invocation)
    assert await written(shop, invocation.saga_id) == 0
    assert await ops(shop, invocation.saga_id) == []
    is_fault = how in ("deadlock", "killed")
    assert outcome.kind == ("rejected" if last == "reject" and not is_fault else "failed")
    assert outcome.infrastructure == is_fault
    assert outcome.failure is not None
    assert "an earlier statement" not in outcome.failure.message
    if shop.database.kind != "postgresql":
        assert refusals(shop) in (4, 12), "in each transaction, of which a conflict has three"


@EACH_END
async def test_an_undo_and_a_confirm(shop: EndingShop, how: str) -> None:
    for op in ("undo", "confirm"):
        done = call(how, ("write",), "return")
        assert (await perform(shop, done)).kind == "done"
        key = idempotency_key(done.saga_id, "charge", 1, op)
        guard = GuardSpec("shop", known_done=True)
        arguments = {**done.arguments, "steps": list(CAUGHT)}
        outcome = await perform(shop, replace(done, op=op, key=key, guard=guard, arguments=arguments))
        assert outcome.kind == "failed"
        assert await written(shop, done.saga_id) == 1
        assert await ops(shop, done.saga_id) == ["do"]


@pytest.mark.sampled(turns="last")
@EACH_END
@pytest.mark.parametrize("last", ["return", "reject"])
async def test_an_item_of_a_chunk(shop: EndingShop, how: str, last: str) -> None:
    """The neighbours are done, and the item has the outcome that it has on its own."""
    calls = [call(how, ("write", "write"), last) for _ in range(9)]
    calls.insert(4, call(how, CAUGHT, last))
    alone = await perform(shop, call(how, CAUGHT, last))
    outcomes = await ChunkPerformer(shop.database.guard, actions_of(shop)).perform(calls, new_attempt())
    for number, (invocation, outcome) in enumerate(zip(calls, outcomes, strict=True)):
        assert outcome is not None
        if number != 4 and how == "killed":  # the whole chunk has lost its connection
            assert outcome.infrastructure
            assert await written(shop, invocation.saga_id) == 0
            continue
        if number != 4:
            assert outcome.kind == "done"
            assert await written(shop, invocation.saga_id) == 2
            assert await ops(shop, invocation.saga_id) == ["do"]
            continue
        assert outcome.failure is not None
        assert alone.failure is not None
        assert (outcome.kind, outcome.conflict) == (alone.kind, alone.conflict)
        assert outcome.failure.type == alone.failure.type
        assert "savepoint" not in outcome.failure.message
        assert await written(shop, invocation.saga_id) == 0
        assert await ops(shop, invocation.saga_id) == []


@EACH_END
async def test_a_chunk_that_is_repeated(shop: EndingShop, how: str) -> None:
    """The error comes once: each item is done in the end, with the rows of a single attempt."""
    shop.left = 1
    calls = [call(how, ("write", "end", "write"), "return") for _ in range(4)]
    outcomes = await ChunkPerformer(shop.database.guard, actions_of(shop)).perform(calls, new_attempt())
    for invocation, outcome in zip(calls, outcomes, strict=True):
        assert outcome is not None
        is_done = outcome.kind == "done"
        assert await written(shop, invocation.saga_id) == (2 if is_done else 0)
        assert await ops(shop, invocation.saga_id) == (["do"] if is_done else [])


@pytest.mark.sampled("how")
@EACH_END
async def test_a_batch_action(shop: EndingShop, how: str) -> None:
    calls = [call(how, ("write", "write"), "return", "ended.all") for _ in range(3)]
    calls.append(call(how, CAUGHT, "return", "ended.all"))
    outcomes = await ChunkPerformer(shop.database.guard, actions_of(shop)).perform(calls, new_attempt())
    neighbours, rows = ("failed", 0) if how == "killed" else ("done", 2)
    assert [outcome and outcome.kind for outcome in outcomes] == [neighbours] * 3 + ["failed"]
    assert [await written(shop, invocation.saga_id) for invocation in calls] == [rows] * 3 + [0]
    assert await ops(shop, calls[-1].saga_id) == []


ON_SERVERS = [pytest.param(kind, how) for kind, how in ALL_ENDS if kind != "sqlite"]


@pytest.mark.parametrize(("shop", "how"), ON_SERVERS, indirect=["shop"])
async def test_a_two_phase_step(shop: EndingShop, how: str) -> None:
    invocation = call(how, CAUGHT, "return", two_phase=True)
    outcome = await perform(shop, invocation)
    assert outcome.kind == "failed"
    assert await written(shop, invocation.saga_id) == 0
    assert "committed" not in await ops(shop, invocation.saga_id)


@pytest.mark.sampled(turns="last")
@EACH_END
@pytest.mark.parametrize("last", ["return", "reject"])
async def test_a_participant(shop: EndingShop, how: str, last: str) -> None:
    @participant("ended", connection="shop", timeout=30)
    class Ended:
        async def do(self, command: Command, steps: list[str]) -> Any:
            return await carry_out(shop, command.sql, command.key, how, steps, last)

        async def undo(self, command: Command) -> None: ...

    commands = ParticipantCommands.of(getattr(Ended, HANDLER_ATTRIBUTE), shop.database.guard)
    key = new_id()
    outcome = await commands.perform(CommandCall("do", key, {"steps": list(CAUGHT)}))
    is_fault = how in ("deadlock", "killed")
    assert outcome.kind == ("rejected" if last == "reject" and not is_fault else "failed")
    assert await written(shop, key) == 0
    assert await ops(shop, key) == (["confirm", "do", "undo"] if outcome.kind == "rejected" else [])


@EACH_END
async def test_a_probe(shop: EndingShop, how: str) -> None:
    invocation = call(how, CAUGHT, "return", op="probe")
    assert (await perform(shop, invocation)).kind == "failed"
    assert await written(shop, invocation.saga_id) == 0


@pytest.mark.sampled(turns="shop")
@pytest.mark.parametrize("shop", list(ENDS), indirect=True)
@pytest.mark.parametrize("seed", range(6))
async def test_any_mixture_of_statements_and_ends(shop: EndingShop, seed: int) -> None:
    """An attempt is done with all its rows, or has left none."""
    dice = random.Random(seed)
    for _ in range(12):
        steps = dice.choices(STEPS, weights=(4, 2, 1, 1, 1, 1), k=dice.randint(1, 8))
        # A deadlock takes the database a second to notice.
        how = dice.choice([end for end in ENDS[shop.database.kind] if end != "deadlock" or seed == 0])
        invocation = call(how, steps, dice.choice(LASTS))
        outcome = await perform(shop, invocation)
        has_ended = any(step.startswith("end") for step in steps)
        assert outcome.kind in (("failed", "rejected") if has_ended else ("done",)), steps
        assert await written(shop, invocation.saga_id) == (0 if has_ended else rows_of(steps)), steps
        assert await ops(shop, invocation.saga_id) == ([] if has_ended else ["do"]), steps


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
@pytest.mark.parametrize("change", ["update", "delete"])
async def test_an_automatic_undo(shop: EndingShop, change: str) -> None:
    """The engine tries several ways to restore rows, none of them after the transaction has ended."""
    table = f"kept_{change}"
    rows = shop.database.rows
    await rows(f"create table {table} (id integer primary key, n int unique on conflict rollback)")
    await rows(f"insert into {table} values (1, 1), (2, 2), (3, 3)")
    run = {"update": f"update {table} set n = n + 10", "delete": f"delete from {table}"}[change]
    done = replace(call("", (), "", "sql", images=True), arguments={"connection": "shop", "run": run})
    assert (await perform(shop, done)).kind == "done"
    await rows(f"insert into {table} values (9, 3)")  # in the way of the last one
    before = await rows(f"select id, n from {table} order by id")
    guard = GuardSpec("shop", images=True, known_done=True)
    key = idempotency_key(done.saga_id, "charge", 1, "undo")
    outcome = await perform(shop, replace(done, action="sql.restore", arguments={}, op="undo", key=key, guard=guard))
    assert outcome.kind == "failed"
    assert outcome.failure is not None
    assert "UNIQUE constraint failed" in outcome.failure.message
    assert await rows(f"select id, n from {table} order by id") == before
    assert await ops(shop, done.saga_id) == ["do"]


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
async def test_two_statements_of_which_the_last_ends_the_transaction(shop: EndingShop) -> None:
    """In a chunk the item has the error of its own statement, and may be repeated as on its own."""
    statements = [
        {"sql": "insert into trace_row values (:id, 1)", "params": {"id": "shared"}},
        {"sql": "insert into taken_for_all values (:id)", "params": {"id": "A"}},
    ]
    plain = call("", (), "", "sql")
    calls = [
        replace(call("", (), "", "sql"), arguments={"connection": "shop", "run": statements[:1]}),
        replace(plain, arguments={"connection": "shop", "run": statements}),
    ]
    done, failed = await ChunkPerformer(shop.database.guard, actions_of(shop)).perform(calls, new_attempt())
    assert done is not None
    assert done.kind == "done"
    assert failed is not None
    assert (failed.kind, failed.conflict, failed.retryable) == ("failed", True, True)
    assert failed.failure is not None
    assert "UNIQUE constraint failed" in failed.failure.message
    assert await written(shop, "shared") == 1


@pytest.mark.parametrize("shop", list(ENDS), indirect=True)
@pytest.mark.parametrize("last", ["return", "reject", "raise"])
async def test_a_transaction_that_vanishes_without_an_error(
    shop: EndingShop, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy has answered on another session: nobody knows what that session has committed."""
    invocation = call("refused", ("write", "read", "write"), last)
    kind = PostgresSqlSession if shop.database.kind == "postgresql" else SqlSession
    send, vanished = kind._send, set[int]()

    async def send_without_transaction(session: SqlSession, *statement: Any) -> Any:
        if id(session) not in vanished:
            vanished.add(id(session))
            await session._connection.exec_driver_sql("ROLLBACK")
        return await send(session, *statement)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(kind, "_send", send_without_transaction)
    outcome = await perform(shop, invocation)
    assert (outcome.kind, outcome.retryable) == ("unknown", False)
    assert outcome.park_reason is not None
    assert "may have been committed alone" in outcome.park_reason
    assert await written(shop, invocation.saga_id) <= 1, "no statement after the first is sent"
    assert await ops(shop, invocation.saga_id) == []


async def test_a_lock_wait_that_ends_the_transaction() -> None:
    """The setting innodb_rollback_on_timeout lets a wait for a lock roll back the whole transaction."""
    with mariadb("--innodb-rollback-on-timeout=ON") as server:
        shop = await open_ending_shop("mariadb", await new_mariadb_database(server))
        try:
            await _check_lock_wait(shop)
        finally:
            await shop.close()


async def _check_lock_wait(shop: EndingShop) -> None:
    @action("ended.waits", connection="shop")
    async def waits(step: Step) -> Any:
        await step.sql.execute("insert into trace_row values (:id, 1)", id=step.saga_id)
        for statement in ("update account set n = n + 1 where id = 1", "insert into trace_row values (:id, 2)"):
            try:
                await step.sql.execute(statement, **({"id": step.saga_id} if ":id" in statement else {}))
            except Exception as error:  # noqa: BLE001 - as an author may do
                shop.errors.append(error)

    bodies = ActionBodies(Actions([getattr(waits, ACTION_ATTRIBUTE)]))
    dispatcher = Dispatcher(bodies, shop.database.connections, HttpConnections({}))
    async with shop.outside.engine("shop").connect() as outsider:
        await outsider.exec_driver_sql("begin")
        await outsider.exec_driver_sql("update account set n = 5 where id = 1")
        invocation = replace(call("", (), "", "ended.waits"), arguments={}, timeout=3.0)
        outcome = await dispatcher.perform(invocation, new_attempt(3.0))
        (item,) = await ChunkPerformer(shop.database.guard, bodies).perform([invocation], new_attempt(6.0))
        await outsider.exec_driver_sql("rollback")
    assert outcome.kind == "failed"
    assert item is None or item.kind == "failed"
    assert refusals(shop) >= 1
    assert await written(shop, invocation.saga_id) == 0
    assert await ops(shop, invocation.saga_id) == []
