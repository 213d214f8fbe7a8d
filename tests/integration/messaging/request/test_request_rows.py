"""One attempt of `kafka.request` against its row, on each database: written once, sealed, found, requested again."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from saga_activities.attempt_context import AttemptContext, ReplyPending
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.guard.schema import create_tables
from saga_activities.guard.watermark import clean_up
from saga_activities.messaging import kafka_request
from saga_activities.messaging.kafka_request import KafkaRequestAction, RefusedReply, Reply
from sagas.builtins.messaging import REPLY_PROBE, REQUEST
from sagas.errors import UsageError
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.settings import KafkaSettings, SqlConnection
from tests.helpers.new_databases import new_url
from tests.helpers.sampling import scaled


class RequestSetup:
    """Attempts of one step of one saga, and the outbox they write to."""

    def __init__(self, databases: DatabaseConnections) -> None:
        self.databases = databases
        self.saga_id = f"trip-{uuid.uuid4()}"
        self.requests = KafkaRequestAction(databases, KafkaSettings(outbox="shop"))

    async def attempt(
        self,
        number: int = 1,
        *,
        action: str = REQUEST,
        op: str = "do",
        earlier: int = 0,
        run: str = "first",
        **arguments: Any,
    ) -> Outcome | None:
        """The outcome; None: it waits."""
        key = f"{self.saga_id}/reserve" + ("" if op in ("do", "probe") else f"/{op}")
        given = {} if action == REPLY_PROBE else {"topic": "t", "value": 1, **arguments}
        invocation = Invocation(action, given, key, self.saga_id, "reserve", op, 1, earlier_attempts=earlier)
        now = time.time()
        attempt = AttemptContext(
            number,
            now,
            now + 20,
            lambda _: None,
            logging.getLogger("test"),
            task_token=b"token %d" % number,
            run_id=run,
        )
        try:
            return await self.requests.perform(invocation, attempt)
        except ReplyPending:
            return None

    async def probe(self) -> Any:
        reported = await self.attempt(action=REPLY_PROBE, op="probe")
        assert reported is not None
        return reported.result

    async def reply(
        self, outcome: str, data: Any = None, *, op: str = "do", topic: str = "saga-replies", **options: Any
    ) -> tuple[bool, kafka_request.RequestRow | None]:
        """``options``: ``token``, by default that of the row, and ``token_required``."""
        key = f"{self.saga_id}/reserve" + ("" if op == "do" else f"/{op}")
        output = data if outcome == "done" else {"reason": data, "details": {}}
        token = options.pop("token") if "token" in options else await self.token(key)
        reply = Reply(key, outcome, json.dumps(output), topic, token)
        return await kafka_request.record_reply(self.databases.engine("shop"), reply, **options)

    async def token(self, key: str) -> str | None:
        return await self.scalar("select reply_token from saga_request where step_key = :key", key=key)

    async def scalar(self, statement: str, **parameters: str) -> Any:
        async with self.databases.engine("shop").connect() as connection:
            return (await connection.execute(text(statement), parameters)).scalar()

    async def commands(self) -> int:
        return await self.scalar("select count(*) from saga_outbox where saga_id = :id", id=self.saga_id)


pytestmark = pytest.mark.sampled(turns="setup")


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
async def setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RequestSetup]:
    url = await new_url(request.param, request, tmp_path)
    databases = DatabaseConnections([SqlConnection(name="shop", url_setting=url)])
    await create_tables(databases.engine("shop"))
    yield RequestSetup(databases)
    await databases.close()


async def test_the_command_is_written_once_and_the_last_attempt_waits(setup: RequestSetup) -> None:
    assert await setup.attempt(1) is None
    assert await setup.attempt(2) is None
    assert await setup.commands() == 1
    first, row = await setup.reply("done", {"n": 1})
    assert first
    assert row is not None
    assert row.waiter is not None
    assert (row.waiter.token, row.waiter.attempt) == (b"token 2", 2)
    reported = await setup.attempt(3)
    assert reported == Outcome.done({"n": 1}, attempt=3)


async def test_the_first_reply_counts(setup: RequestSetup) -> None:
    await setup.attempt()
    assert (await setup.reply("rejected", "no"))[0]
    first, row = await setup.reply("done", 1)
    assert not first
    assert row is not None
    assert row.outcome == "rejected"
    reported = await setup.attempt(2)
    assert reported is not None
    assert reported.failure is not None
    assert (reported.kind, reported.failure.message, reported.retryable) == ("rejected", "no", False)


async def test_all_attempts_of_a_command_have_one_token(setup: RequestSetup) -> None:
    await setup.attempt(1)
    key = f"{setup.saga_id}/reserve"
    token = await setup.token(key)
    assert token is not None
    assert len(token) == 32, "192 bits"
    await setup.attempt(2)
    assert await setup.token(key) == token
    headers = await setup.scalar("select headers from saga_outbox where saga_id = :id", id=setup.saga_id)
    assert json.loads(headers)["sagatoken"] == token
    assert token not in repr(await setup.reply("done")), "not in a traceback or a log"


@pytest.mark.parametrize("forged", [{"token": None}, {"token": "guessed"}, {"topic": "orders"}])
async def test_a_forged_reply_is_not_recorded(setup: RequestSetup, forged: dict[str, Any]) -> None:
    await setup.attempt()
    with pytest.raises(RefusedReply):
        await setup.reply("rejected", "forged", **forged)
    assert await setup.attempt(2) is None, "it waits for the reply of the participant"
    assert (await setup.reply("done", 1))[0]
    with pytest.raises(RefusedReply):
        await setup.reply("rejected", "forged", **forged)


async def test_a_reply_without_the_token_is_accepted_if_configured(setup: RequestSetup) -> None:
    await setup.attempt()
    with pytest.raises(RefusedReply, match="not that of the command"):
        await setup.reply("done", token="guessed", token_required=False)
    with pytest.raises(RefusedReply, match="asks for its reply in saga-replies"):
        await setup.reply("done", topic="orders", token=None, token_required=False)
    assert (await setup.reply("done", token=None, token_required=False))[0]


async def test_missing_tables_are_an_infrastructure_error(setup: RequestSetup) -> None:
    """The engine was started before `saga setup` ran: attempts and replies are retried, and say what to do."""
    await setup.attempt()
    async with setup.databases.engine("shop").connect() as connection:
        await connection.execute(text("drop table saga_request"))
    try:
        outcome = await setup.attempt(2)
        assert outcome is not None
        assert outcome.infrastructure
        assert outcome.failure is not None
        assert "run `saga setup`" in outcome.failure.message
        with pytest.raises(DBAPIError) as raised:
            await setup.reply("done", token=None)
        classified = classify_database_error(raised.value)
        assert classified is not None
        assert "run `saga setup`" in classified.message
    finally:
        async with setup.databases.engine("shop").connect() as connection:
            await connection.execute(text("delete from saga_version"))
        await create_tables(setup.databases.engine("shop"))


async def test_a_command_that_is_sent_again_expects_its_reply_where_it_asks_for_it(setup: RequestSetup) -> None:
    await setup.attempt(1, op="undo")
    await setup.reply("rejected", "no", op="undo")
    assert await setup.attempt(1, op="undo", earlier=2, reply_topic="other-replies") is None
    with pytest.raises(RefusedReply):
        await setup.reply("done", op="undo")
    assert (await setup.reply("done", op="undo", topic="other-replies"))[0]


async def test_a_reply_to_the_first_command_does_not_answer_the_one_sent_again(setup: RequestSetup) -> None:
    await setup.attempt(1, op="undo")
    first = await setup.token(f"{setup.saga_id}/reserve/undo")
    await setup.reply("rejected", "no", op="undo")
    assert await setup.attempt(1, op="undo", earlier=2) is None
    headers = await setup.scalar(
        "select headers from saga_outbox where saga_id = :id order by id desc", id=setup.saga_id
    )
    assert json.loads(headers)["sagatoken"] == await setup.token(f"{setup.saga_id}/reserve/undo") != first
    with pytest.raises(RefusedReply, match="not that of the command"):
        await setup.reply("rejected", "no", op="undo", token=first)
    assert (await setup.reply("done", op="undo"))[0]


async def test_a_reply_without_a_request_is_ignored(setup: RequestSetup) -> None:
    assert await setup.reply("done") == (False, None)


async def test_a_probe_seals_a_request_that_was_never_sent(setup: RequestSetup) -> None:
    assert await setup.probe() == {"probe": "absent"}
    reported = await setup.attempt()
    assert reported is not None
    assert reported.kind == "late"
    assert await setup.commands() == 0
    assert await setup.probe() == {"probe": "absent"}


@pytest.mark.parametrize(
    ("outcome", "expected"), [("done", {"probe": "done", "result": 7}), ("rejected", {"probe": "absent"})]
)
async def test_a_probe_finds_the_reply(setup: RequestSetup, outcome: str, expected: Any) -> None:
    await setup.attempt()
    assert (await setup.probe())["probe"] == "unknown"
    await setup.reply(outcome, 7 if outcome == "done" else "no")
    assert await setup.probe() == expected


async def test_a_refused_undo_is_sent_again_only_by_a_new_call(setup: RequestSetup) -> None:
    assert await setup.attempt(1, op="undo") is None
    await setup.reply("rejected", "no", op="undo")
    reported = await setup.attempt(2, op="undo")
    assert reported is not None
    assert reported.kind == "rejected", "the same call has not heard it yet"
    assert await setup.attempt(1, op="undo", earlier=2) is None
    assert await setup.commands() == 2
    assert await setup.attempt(2, op="undo", earlier=2) is None
    assert await setup.commands() == 2
    await setup.reply("done", None, op="undo")
    assert await setup.attempt(1, op="undo", earlier=4) == Outcome.done(None)


async def test_a_new_run_sends_a_refused_undo_again(setup: RequestSetup) -> None:
    assert await setup.attempt(op="undo") is None
    await setup.reply("rejected", "no", op="undo")
    for commands, run in ((2, "second"), (3, "third")):
        assert await setup.attempt(op="undo", run=run) is None
        assert await setup.attempt(2, op="undo", run=run) is None
        assert await setup.commands() == commands
        await setup.reply("rejected", "no", op="undo")
        reported = await setup.attempt(3, op="undo", run=run)
        assert reported is not None
        assert reported.kind == "rejected"
    assert await setup.commands() == 3


@pytest.mark.parametrize(("replied", "kind"), [(None, "late"), ("done", "late"), ("rejected", "done")])
async def test_a_command_whose_undo_was_sent_is_late(setup: RequestSetup, replied: str | None, kind: str) -> None:
    await setup.attempt()
    await setup.reply("done", 1)
    await setup.attempt(op="undo")
    if replied is not None:
        await setup.reply(replied, "no", op="undo")
    repeated = await setup.attempt(run="second")
    assert repeated is not None
    assert repeated.kind == kind


@pytest.mark.sampled("setup")
async def test_a_concurrent_attempt_and_reply_never_miss_each_other(setup: RequestSetup) -> None:
    """Either the attempt finds the reply, or who recorded the reply finds the attempt."""
    for round in range(scaled(30, 200)):
        setup.saga_id = f"trip-{uuid.uuid4()}"
        assert await setup.attempt(1) is None
        reported, (_, row) = await asyncio.gather(setup.attempt(2), setup.reply("done", round))
        assert row is not None
        assert row.waiter is not None
        assert reported is not None or row.waiter.attempt == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": 3}, "needs `topic`"),
        ({"headers": {"sagakey": "mine"}}, "reserved for the engine"),
        ({"headers": [1]}, "must be a mapping"),
        ({"body": 1}, "no argument 'body'"),
    ],
)
async def test_invalid_command_arguments_are_refused(
    setup: RequestSetup, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        await setup.attempt(**arguments)
    assert await setup.commands() == 0


async def test_a_missing_outbox_is_reported(setup: RequestSetup) -> None:
    setup.requests = KafkaRequestAction(setup.databases, KafkaSettings())
    with pytest.raises(UsageError, match=r"\[kafka\] outbox"):
        await setup.attempt()


async def test_clean_up_purges_requests_with_their_saga(setup: RequestSetup) -> None:
    assert await setup.attempt() is None
    engine = setup.databases.engine("shop")
    options = {"oldest_open": None, "longest_transaction": 0.0}
    assert await clean_up(engine, now=time.time(), retention=3600, **options) == 0
    assert await clean_up(engine, now=time.time() + 7200, retention=3600, **options) >= 1
    assert await setup.reply("done") == (False, None)
    reported = await setup.attempt(2)
    assert reported is not None
    assert reported.kind == "late", "older than the watermark of the database"
