"""An encrypted value that is copied into another row is refused as a changed one: it never is another saga's value."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.automatic.restoration import load_images
from saga_activities.automatic.stored_images import insert_images
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.stored_values import stored_values
from saga_activities.guard.unreadable_rows import ChangedRow
from saga_activities.ledger.records import RunRecord
from saga_activities.ledger.rows import make_record
from saga_activities.ledger.schema import create_ledger
from saga_activities.messaging import kafka_request
from saga_activities.messaging.kafka_request import Reply
from saga_activities.messaging.outbox import decrypted_event, insert_events
from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.relay.relay_status import unreadable_event
from sagas.actions.events import Event
from sagas.errors import RefusedError
from sagas.protocol.payloads import Invocation, to_packed_text
from sagas.protocol.saga_view import SagaView
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, open_guard_database

CHANGED = "a stored value of this saga was changed in its database"
STARTED = datetime(2026, 5, 20, 10, 30, tzinfo=UTC)


@pytest_asyncio.fixture
async def database(postgres_server: DatabaseServer) -> AsyncIterator[GuardDatabase]:
    url = new_database(postgres_server)
    opened = await open_guard_database("postgres", url, codec_key=secrets.token_hex(32), encrypts_outbox=True)
    yield opened
    await opened.connections.close()


async def swap(database: GuardDatabase, table: str, *columns: str, by: str) -> None:
    """Exchange columns of two rows, as a role can that may change rows and has no key."""
    assigned = ", ".join(f"{column} = other.{column}" for column in columns)
    change = f"update {table} set {assigned} from {table} other where {table}.{by} <> other.{by}"
    async with database.engine.begin() as connection:
        assert (await connection.execute(text(change))).rowcount == 2


async def test_the_result_of_another_saga_parks_the_step_and_its_undo(database: GuardDatabase) -> None:
    first, second = new_address(), new_address()
    for address in (first, second):

        async def returns(_: SqlSession, address: EntryKey = address) -> Any:
            return {"card": address.saga_id}

        await database.guard.do(address, None, returns, **clock())
    await swap(database, "saga_guard", "result", by="saga_id")
    again = await database.guard.do(first, None, returns, **clock())
    undone = await database.guard.undo(second, returns, known_done=True, **clock())
    for outcome in (again, undone):
        assert (outcome.kind, outcome.retryable, outcome.park_reason) == ("failed", False, CHANGED)
    await swap(database, "saga_guard", "result", by="saga_id")
    assert (await database.guard.do(first, None, returns, **clock())).result == {"card": first.saga_id}


def image(address: EntryKey, sequence: int, *, table: str, key: str, before: str) -> dict[str, Any]:
    values = {"statement": sequence, "row_hash": key, "row_change": sequence, "undo_scope": "", "created_at": 0.0}
    images = {"table_name": table, "row_key": key, "before_image": before, "after_image": None}
    return {**address.values, "sequence": sequence, **values, **images}


@pytest.mark.parametrize("column", ["row_key", "before_image"])
async def test_the_image_of_another_saga_restores_nothing(database: GuardDatabase, column: str) -> None:
    first, second = new_address(), new_address()
    async with database.engine.connect() as connection:
        sql = SqlSession(connection)
        for address in (first, second):
            header = image(address, 0, table="", key="1", before='{"bills":{}}')
            own = image(address, 1, table="bills", key="{}", before=json.dumps({"name": address.saga_id}))
            await insert_images(sql, [header, own])
        assert (await load_images(sql, first))[1][0]["before_image"] == json.dumps({"name": first.saga_id})
        change = f"update saga_image set {column} = other.{column} from saga_image other"
        change += " where saga_image.saga_id <> other.saga_id and saga_image.sequence = 1 and other.sequence = 1"
        assert (await connection.execute(text(change))).rowcount == 2
        with pytest.raises(ChangedRow, match=CHANGED):
            await load_images(sql, first)


async def request(connection: AsyncConnection, key: str) -> kafka_request.RequestRow:
    row = {"step_key": key, "saga_id": key, "step": "a", "generation": 1, "op": "do", "created_at": time.time()}
    return await kafka_request.lock_request(
        SqlSession(connection), {**row, "reply_topic": "replies", "reply_token": f"token of {key}"}
    )


async def test_the_reply_to_another_saga_is_no_reply(database: GuardDatabase) -> None:
    async with database.engine.connect() as connection:
        for key in ("s-1", "s-2"):
            await request(connection, key)
            reply = Reply(key, "done", f'"reply to {key}"', "replies", f"token of {key}")
            await kafka_request.record_reply(database.engine, reply)
        assert (await request(connection, "s-1")).data == '"reply to s-1"'
        await swap(database, "saga_request", "data", by="step_key")
        with pytest.raises(ChangedRow, match=CHANGED):
            await request(connection, "s-1")


def emitted(saga_id: str) -> Invocation:
    return Invocation("emit", {}, f"{saga_id}/a", saga_id, "a", "do", 1)


CHANGES = {
    "value of another": "value = other.value, event_key = other.event_key, headers = other.headers",
    "other saga": "saga_id = other.saga_id",
    "other topic": "topic = 'read-by-others'",
    "key as value": "value = saga_outbox_row.event_key",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_the_event_of_another_saga_is_not_published(database: GuardDatabase, change: str) -> None:
    async with database.engine.connect() as connection:
        for saga_id in ("s-1", "s-2"):
            await insert_events(SqlSession(connection), [Event("orders", saga_id, saga_id)], emitted(saga_id))
        assert await unreadable_event(database.engine) is None
        await connection.execute(
            text(
                f"update saga_outbox_row set {change} from saga_outbox_row other"
                " where saga_outbox_row.saga_id = 's-1' and other.saga_id = 's-2'"
            )
        )
        rows = (await connection.execute(text("select * from saga_outbox order by id"))).all()
    [changed, other] = [row._asdict() for row in rows]
    with pytest.raises(ChangedRow, match=CHANGED):
        decrypted_event(changed, stored_values(database.engine))
    assert decrypted_event(other, stored_values(database.engine))["value"] == '"s-2"'
    assert CHANGED in (await unreadable_event(database.engine) or "")


def record(saga_id: str) -> RunRecord:
    at = STARTED.isoformat()
    view = SagaView(id=saga_id, saga="checkout", state="COMPLETED", started_at=at, ended_at=at, can_undo=True)
    document, state = view.to_json(), saga_id.encode()
    row = make_record(document, saga_id=saga_id, labels={}, updated_at=STARTED, input_digest=None, machine=state)
    assert row is not None
    return row


async def test_the_state_of_another_saga_is_not_shown(database: GuardDatabase) -> None:
    await create_ledger(database.engine)
    ledger = RunLedger("shop", lambda: database.engine)
    await ledger.write([record("s-1"), record("s-2")])
    assert await ledger.machine("s-1") == to_packed_text(b"s-1")
    await swap(database, "saga_run", "machine", by="saga_id")
    with pytest.raises(RefusedError, match="was changed in its database"):
        await ledger.machine("s-1")
