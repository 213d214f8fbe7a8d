"""Rows of saga_enqueued start and signal sagas once, in order, and what cannot be delivered says why."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from saga_activities.connections import open_engine
from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from sagas import enqueue, enqueue_signal
from sagas.errors import UsageError
from sagas.project import Project
from sagas.protocol.payloads import BATCH_PREFIX, BATCH_WORKFLOW
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.enqueued.conftest import Shop

KINDS = ("postgresql", "mariadb", "sqlite")
PAGE = Path(__file__).parents[3] / "docs/how-to/start-from-your-transaction.md"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_committed_row_starts_its_saga_and_a_rolled_back_one_does_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[tuple[str, float]] = []
    monkeypatch.setattr(EnqueuedMetrics, "count", lambda _, __, outcome, seconds: times.append((outcome, seconds)))
    await shop.sql("create table purchase (id varchar(20) primary key)")
    async with shop.relay():
        async with AsyncSession(shop.engine.execution_options(isolation_level="SERIALIZABLE")) as session:
            await session.execute(_text("insert into purchase values ('p-1')"))
            await enqueue(session, "checkout", {"product": "apple"}, id=f"{shop.mark}-1")
            await session.rollback()
            await session.execute(_text("insert into purchase values ('p-2')"))
            await enqueue(session, "checkout", {"product": "pear"}, id=f"{shop.mark}-2")
            await asyncio.sleep(0.3)
            begin = time.monotonic()
            await session.commit()
        await until(shop.is_empty)
        passed = time.monotonic() - begin
    [(outcome, seconds)] = times
    assert (outcome, 0.3 < seconds < passed + 1) == ("started", True), (times, passed)

    assert await shop.inputs(1) == {f"{shop.mark}-2": {"product": "pear", "quantity": 1}}
    assert await shop.sql("select id from purchase") == [("p-2",)]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_documented_statement_needs_no_library(shop: Shop) -> None:
    row = "insert into saga_enqueued (saga, saga_id, input) values ('checkout', :id, '{\"product\": \"fig\"}')"
    await shop.sql(row, id=shop.mark)
    await shop.sql(
        "insert into saga_enqueued (saga, input) values ('order', :input)", input=f'{{"number": "{shop.mark}"}}'
    )
    await shop.sql("insert into saga_enqueued (saga, input) values ('checkout', '{\"product\": \"plum\"}')")
    uid = (await shop.sql("select max(uid) from saga_enqueued where saga_id is null and saga = 'checkout'"))[0][0]
    await shop.deliver()

    assert await shop.inputs(3) == {
        shop.mark: {"product": "fig", "quantity": 1},
        f"order-{shop.mark}": {"number": shop.mark},
        f"checkout-{uid}": {"product": "plum", "quantity": 1},
    }
    assert await shop.is_empty()


async def test_psycopg_writes_in_its_own_transaction(shop: Shop) -> None:
    url = shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await enqueue(connection, "checkout", {"product": "apple"}, id=shop.mark)
        async with connection.cursor() as cursor:
            await enqueue_signal(cursor, shop.mark, "paid", {"by": "card"})
    await shop.deliver()

    assert list(await shop.inputs(1)) == [shop.mark]
    assert await shop.history(shop.mark) == ["paid"]


@pytest.mark.sampled(turns="kind")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_signal_follows_the_start_of_its_saga(shop: Shop) -> None:
    async with AsyncSession(shop.engine) as session:
        for number in range(20):
            await enqueue(session, "checkout", {"product": "apple"}, id=f"{shop.mark}-{number}")
            await enqueue_signal(session, f"{shop.mark}-{number}", "paid", {"amount": "12.50"}, saga="checkout")
        await session.commit()
    await shop.deliver()

    assert await shop.is_empty()
    async with running_worker(shop.project):
        ended = await finished(shop.client, f"{shop.mark}-3")
    assert ended["state"] == "COMPLETED"
    assert ended["steps"][0]["result"]["data"] == {"amount": "12.50"}


async def test_a_row_whose_saga_exists_is_delivered_and_with_another_input_it_is_refused(shop: Shop) -> None:
    await shop.client.start("checkout", {"product": "apple"}, id=shop.mark)
    async with AsyncSession(shop.engine) as session:
        await enqueue(session, "checkout", {"product": "apple"}, id=shop.mark)
        await enqueue(session, "checkout", {"product": "pear"}, id=shop.mark)
        await enqueue(session, "order", {"number": "1"}, id=shop.mark)
        await session.commit()
    await shop.deliver()

    assert await shop.rows() == [
        ("REFUSED", shop.mark, f"{shop.mark} has been started with another input"),
        ("REFUSED", shop.mark, f"the id {shop.mark} belongs to a run of the saga checkout"),
    ]


async def test_another_row_for_a_compensated_saga_is_refused_and_the_same_row_is_delivered(shop: Shop) -> None:
    """A killed process leaves the row that it has delivered; the order that is placed again is another row."""
    write = "insert into saga_enqueued (saga, saga_id, input, uid) values ('checkout', :id, :input, :uid)"
    first = {"id": shop.mark, "input": '{"product": "fig"}', "uid": f"{shop.mark}-a"[:36]}
    async with running_worker(shop.project):
        await shop.sql(write, **first)
        await shop.deliver()
        await shop.client.cancel(shop.mark)
        assert (await finished(shop.client, shop.mark))["state"] == "COMPENSATED"
        await shop.sql(write, **first)
        await shop.deliver()
        assert await shop.is_empty()
        await shop.sql(write, **{**first, "uid": f"{shop.mark}-b"[:36]})
        await shop.deliver()
        await _start_elsewhere(shop, f"{shop.mark}-2")
        for at in (60, -60):  # of a saga that no row is known to have started, the time tells
            later = "extract(epoch from now()) + :at, 'checkout', :id, :input"
            insert = f"insert into saga_enqueued (created_at, saga, saga_id, input) values ({later})"
            await shop.sql(insert, at=at, id=f"{shop.mark}-2", input=first["input"])
        await shop.deliver()
    why = "was not started by this row, and has ended COMPENSATED: only --again starts it again, as a new generation"
    ids = (shop.mark, f"{shop.mark}-2")
    assert await shop.rows() == [("REFUSED", id, f"{id} {why}") for id in ids]


async def _start_elsewhere(shop: Shop, saga_id: str) -> None:
    """Start a saga without a row, and cancel it."""
    await shop.client.start("checkout", {"product": "fig"}, id=saga_id)
    await shop.client.cancel(saga_id)
    assert (await finished(shop.client, saga_id))["state"] == "COMPENSATED"


async def test_what_can_never_be_delivered_is_refused_with_its_reason_and_blocks_nothing(shop: Shop) -> None:
    wrong: dict[tuple[Any, ...], str] = {
        ("nothing", "a", None, "{}"): "the project has no saga 'nothing'",
        ("checkout", "b", None, "{}"): "input of checkout is not valid",
        ("checkout", "c", None, "{"): "`input` is not JSON",
        ("checkout", "d/e", None, '{"product": "x"}'): "the id d/e must not contain /",
        ("checkout", "f", None, json.dumps({"product": "x" * 2_000_001})): "`input` has 2,000,016 bytes",
        ("checkout", "g" * 3000, None, '{"product": "x"}'): "`saga_id` has more than 512 characters",
        ("x" * 3000, "h", None, '{"product": "x"}'): "`saga` has more than 255 characters",
        (None, "i", None, '{"product": "x"}'): "`saga` is missing",
        (None, None, "paid", "{}"): "`saga_id` is missing",
        (None, "nobody", "paid", "{}"): "there is no saga nobody",
        ("checkout", "", None, '{"product": "x"}'): "`saga_id` is empty: a column that is not used must be NULL",
        ("", "j", None, '{"product": "x"}'): "`saga` is empty",
        (None, "k", " ", "{}"): "`signal_name` is empty",
        ("checkout", "l", None, '{"product": "\\ud800"}'): "it contains half a surrogate pair",
    }
    for saga, saga_id, signal, value in wrong:
        await shop.sql(
            "insert into saga_enqueued (saga, saga_id, signal_name, input, order_key) values (:a, :b, :c, :d, 'one')",
            a=saga, b=saga_id, c=signal, d=value,
        )  # fmt: skip
    await shop.sql(
        "insert into saga_enqueued (saga, saga_id, input, order_key)"
        " values ('checkout', :id, '{\"product\": \"fig\"}', 'one')",
        id=shop.mark,
    )
    await shop.deliver()

    rows = await shop.rows()
    assert [status for status, _, _ in rows] == ["REFUSED"] * len(wrong)
    for (_, _, reason), expected in zip(rows, wrong.values(), strict=True):
        assert expected in str(reason)
    assert list(await shop.inputs(1)) == [shop.mark]


async def test_a_signal_that_no_wait_takes_is_refused(shop: Shop) -> None:
    await shop.client.start("checkout", {"product": "apple"}, id=shop.mark)
    async with AsyncSession(shop.engine) as session:
        await enqueue_signal(session, shop.mark, "payed")
        await enqueue_signal(session, shop.mark, "paid", saga="order")
        await session.commit()
    async with running_worker(shop.project):
        await shop.deliver()

    assert await shop.history(shop.mark) == []
    reasons = [reason for _, _, reason in await shop.rows()]
    assert "has no `wait` for the signal payed" in str(reasons[0])
    assert reasons[1] == f"{shop.mark} is a saga checkout, not order"


async def test_a_saga_whose_definition_is_new_or_deleted_is_started_and_signalled(shop: Shop) -> None:
    """The relay has read the definitions at its start; a run outlives its file."""
    row = "insert into saga_enqueued (saga, saga_id, signal_name, input) values (:saga, :id, :signal, :input)"
    later, gone = shop.folder / "later.saga.yaml", shop.folder / "checkout.saga.yaml"
    async with running_worker(shop.project), shop.relay():
        await shop.sql(row, saga="checkout", id=shop.mark, signal=None, input='{"product": "fig"}')
        await until(shop.is_empty)
        later.write_text(gone.read_text().replace("saga: checkout", "saga: later"))
        await shop.sql(row, saga="later", id=f"{shop.mark}-2", signal=None, input='{"product": "fig"}')
        await shop.sql(row, saga=None, id=f"{shop.mark}-2", signal="paid", input='{"sum": 7}')
        await until(shop.is_empty)
        assert (await finished(shop.client, f"{shop.mark}-2"))["state"] == "COMPLETED"
        gone.unlink()
        later.unlink()
    async with running_worker(Project(shop.project.settings)), shop.relay():
        await shop.sql(row, saga=None, id=shop.mark, signal="payed", input="{}")
        await shop.sql(row, saga=None, id=shop.mark, signal="paid", input='{"sum": 7}')

        async def only_the_wrong_one() -> bool:
            return [status for status, _, _ in await shop.rows()] == ["REFUSED"]

        await until(only_the_wrong_one)
        assert (await finished(shop.client, shop.mark))["state"] == "COMPLETED"
    [(_, _, reason)] = await shop.rows()
    assert "checkout has no `wait` for the signal payed" in str(reason)


async def test_a_workflow_that_is_no_saga_of_the_project_gets_no_signal(shop: Shop) -> None:
    payroll, batch = f"payroll-{shop.mark}", f"{BATCH_PREFIX}{shop.mark}"
    for id, type in ((payroll, "payroll"), (batch, BATCH_WORKFLOW)):
        await shop.client.temporal.start_workflow(type, id=id, task_queue="nobody")
    row = "insert into saga_enqueued (saga_id, signal_name, input) values (:id, 'cancel', '{}')"
    for id in (payroll, batch):
        await shop.sql(row, id=id)
    await shop.deliver()

    assert await shop.rows() == [
        ("REFUSED", payroll, f"{payroll} is not a saga of this project"),
        ("REFUSED", batch, f"{batch} is not a saga of this project"),
    ]
    assert (await shop.history(payroll), await shop.history(batch)) == ([], [])


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_the_documented_grant_leaves_ids_and_statuses_to_the_engine(shop: Shop) -> None:
    page = PAGE.read_text(encoding="utf-8")
    [grant] = [line.removesuffix(";") for line in page.splitlines() if line.startswith("grant insert ")]
    role, url = f"application_{shop.mark}", shop.engine.url
    is_postgresql = url.get_backend_name() == "postgresql"
    if is_postgresql:
        await shop.sql(f"create role {role} login")
        await shop.sql(grant.replace("application", role))
    else:
        await shop.sql(f"create user {role}@'%'")
        await shop.sql(grant.replace("application", f"{role}@'%'"))
    await shop.engine.dispose()
    engine = open_engine("shop", url.set(username=role).render_as_string(hide_password=False), 1)
    overriding = "overriding system value " if is_postgresql else ""
    insert = f"insert into saga_enqueued ({{}}) {overriding}values ({{}})"
    async with engine.connect() as connection:
        await connection.exec_driver_sql(insert.format("saga, saga_id", "'checkout', 'a'"))
        await connection.commit()
        for column, value in (("id", "7"), ("status", "'HELD'"), ("uid", "'u'"), ("created_at", "0")):
            with pytest.raises(SQLAlchemyError, match="denied"):
                await connection.exec_driver_sql(insert.format(f"saga, {column}", f"'checkout', {value}"))
            await connection.rollback()
    await engine.dispose()
    assert [row[:2] for row in await shop.rows()] == [("NEW", "a")]


async def test_rows_of_a_key_are_delivered_in_their_order(shop: Shop) -> None:
    await shop.client.start("checkout", {"product": "apple"}, id=shop.mark)
    for number in range(200):
        await shop.sql(
            "insert into saga_enqueued (saga_id, signal_name, input) values (:id, 'paid', :number)",
            id=shop.mark,
            number=str(number),
        )
    await shop.deliver()

    handle = shop.client.temporal.get_workflow_handle(shop.mark)
    events = [event async for event in handle.fetch_history_events()]
    signals = [
        event.workflow_execution_signaled_event_attributes
        for event in events
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]
    data = [(await shop.client.temporal.data_converter.decode(each.input.payloads))[0]["data"] for each in signals]
    assert data == list(range(200))


async def test_a_long_queue_of_one_key_leaves_room_for_others(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row of the key waits for long; the others are far more than are read at once."""
    from saga_workers.enqueued import deliveries, row_delivery

    monkeypatch.setattr(deliveries, "MAX_HELD", 10)
    monkeypatch.setattr(deliveries, "MAX_HELD_OF_KEY", 5)
    deliver = row_delivery.RowDelivery.deliver

    async def held_up(self: Any, row: Any) -> Any:
        if row.saga_id == "long":
            raise row_delivery.DeliveryUnavailable("a test holds it up")
        return await deliver(self, row)

    monkeypatch.setattr(row_delivery.RowDelivery, "deliver", held_up)
    for saga_id in ["long"] * 50 + [shop.mark]:
        await shop.sql(
            "insert into saga_enqueued (saga, saga_id, input) values ('checkout', :id, '{\"product\": \"fig\"}')",
            id=saga_id,
        )
    async with shop.relay():
        await until(lambda: _has_no(shop, shop.mark))
    rows = await shop.rows()
    assert [row[:2] for row in rows] == [("NEW", "long")] * 50
    assert rows[0][2] == "a test holds it up"


async def _has_no(shop: Shop, saga_id: str) -> bool:
    return all(row[1] != saga_id for row in await shop.rows())


@pytest.mark.parametrize("session", [None, "a session"])
async def test_a_session_that_cannot_be_used_is_refused(session: Any) -> None:
    with pytest.raises(UsageError, match="enqueue cannot write with builtins"):
        await enqueue(session, "checkout", {}, id="a")


async def test_a_connection_that_cannot_be_awaited_is_refused(shop: Shop) -> None:
    url = shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection, pytest.raises(UsageError, match="AsyncConnection"):
        await enqueue(connection, "checkout", {}, id=shop.mark)
    assert await shop.is_empty()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"saga": "Check out"}, "is not the name of a saga"),
        ({"id": "a/b"}, "must not contain /"),
        ({"input": {"x": object()}}, "cannot be written as JSON"),
        ({"input": {"x": b"1"}}, r"the input of checkout cannot be written as JSON: JSON has no form for bytes"),
        ({"input": {"x": float("nan")}}, "nan cannot be stored: JSON has no such number, so give null"),
        ({"id": "m-1 "}, "the id 'm-1 ' must not begin or end with white space"),
        ({"input": {"x": "y" * 2_000_000}}, "has 2,000,008 bytes, and may have 2,000,000"),
        ({"input": {"x": "\ud800"}}, "it contains half a surrogate pair"),
        ({"input": {"\udc00": 1}}, "it contains half a surrogate pair"),
        ({"id": ""}, "the id is empty"),
        ({"id": "\ud800"}, "cannot be encoded in UTF-8"),
        ({"key": "k" * 256}, "an order key has 1 to 255 characters"),
        ({"key": "\ud800"}, "an order key has 1 to 255 characters"),
        ({"key": ""}, "an order key has 1 to 255 characters"),
    ],
)
async def test_what_cannot_be_stored_is_refused_at_once(shop: Shop, wrong: dict[str, Any], why: str) -> None:
    async with AsyncSession(shop.engine) as session:
        values = {"saga": "checkout", "input": {}, "id": "a", **wrong}
        with pytest.raises(UsageError, match=why):
            await enqueue(session, **values)
        await session.commit()
    assert await shop.is_empty()


def _text(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)
