"""`@participant` over HTTP and Kafka: `saga participant test` passes, and no order of deliveries leaks an effect."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from saga_workers.participant.checks import CHECKS, PromiseResult
from saga_workers.participant.participant_test import http_step, kafka_step, run_participant_test
from saga_workers.relay.relay_process import run_relay
from saga_workers.runtime.http_server import HttpServer
from sagas import Command, Message, Rejected, consumer, http_app, participant
from sagas.errors import UsageError
from sagas.project import Project
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fully_consumed, project_of, triggering
from tests.integration.participant.shops import DATABASES, Shop, open_shop

NOWHERE = "127.0.0.1:1"
NAMES = [check.name for check in CHECKS]
TRIP = {"trip": "t1", "seats": 2}


@dataclass
class Booking:
    trip: str
    seats: int


def trains_on(topic: str) -> Any:
    @participant(topic, connection="shop", timeout=10)
    class Trains:
        async def do(self, command: Command, trip: str, seats: int) -> Booking:
            if seats > 100:
                raise Rejected("no seats left", seats=seats)
            if trip == "forgotten":
                command.sql.execute("insert into effect (what, number) values ('forgotten', 1)")
            if trip == "slow":
                await asyncio.sleep(1.0)
            await command.sql.execute("insert into effect (what, number) values (:key, :n)", key=command.key, n=seats)
            command.emit("booked", key=trip, value={"seats": seats})
            return Booking(trip, seats)

        async def undo(self, command: Command) -> dict[str, str]:
            await command.sql.execute("delete from effect where what = :key", key=command.key)
            return {"cancelled": command.key}

        async def confirm(self, command: Command, trip: str) -> str:
            return f"{trip} is final"

    return Trains


@pytest.fixture
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    async with open_shop(getattr(request, "param", "postgresql"), request, tmp_path) as shop:
        yield shop


on_every_database = pytest.mark.parametrize("shop", DATABASES, indirect=True)
pytestmark = pytest.mark.sampled(turns="shop")


def made_project(folder: Path, kafka: Broker, shop: Shop, reader: Any) -> Project:
    return project_of(folder, kafka.settings(outbox="shop"), NOWHERE, readers=[reader], connections={"shop": shop.url})


@asynccontextmanager
async def over_kafka(project: Project) -> AsyncIterator[Any]:
    """The metrics of the trigger that serves the participants of a project, and a relay for their replies."""
    stop = asyncio.Event()
    relay = asyncio.create_task(run_relay(project.settings, stop=stop))
    try:
        async with triggering(project) as metrics:
            yield metrics
    finally:
        stop.set()
        await relay


@asynccontextmanager
async def over_http(project: Project, cls: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = http_app(cls, settings=project.settings)
    async with AsyncExitStack() as stack:
        server = HttpServer("127.0.0.1:0", app, option="--address", description="trains")
        await stack.enter_async_context(server)
        url = f"http://127.0.0.1:{server.port}"
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))


NOT_OVER_KAFKA = dict.fromkeys(("response cut off", "in progress", "remembered rejection"), "skipped")
"""No response can be cut off; the last one needs arguments that are rejected, which these tests do not give."""


def verdicts_but_passed(results: Sequence[PromiseResult]) -> dict[str, str]:
    return {result.check: result.verdict for result in results if result.verdict != "passed"}


@on_every_database
async def test_it_keeps_every_promise_over_both_transports(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=4)
    trains = trains_on(topic)
    project = made_project(tmp_path, kafka, shop, trains)
    bodies = {"data": TRIP}
    async with over_kafka(project), over_http(project, trains) as client:
        step = kafka_step(project.settings, topic, None, {**bodies, "confirm-data": TRIP}, None)
        results = await run_participant_test(project.settings, step, timeout=20)
        assert verdicts_but_passed(results) == NOT_OVER_KAFKA
        assert [number for _, number in await shop.effects()] == [2]  # what the test has confirmed
        urls = [f"POST {str(client.base_url).rstrip('/')}/{op}" for op in ("do", "undo", "confirm")]
        step, rejected = (
            http_step(project.settings, urls[0], urls[1], urls[2], None, {"data": data}, None)
            for data in (TRIP, {**TRIP, "seats": 500})
        )
        step = replace(step, rejected=rejected)
        results = await run_participant_test(project.settings, step, timeout=10)
        assert {result.check: result.problem for result in results if result.verdict != "passed"} == {}
        assert [result.check for result in results] == NAMES
        assert {result.proposal for result in results} == {None, "remembers_rejections: true"}
    assert [number for _, number in await shop.effects()] == [2, 2]


@on_every_database
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_what_is_promised_over_http(
    kafka: Broker, shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trains = trains_on("unused")
    async with over_http(made_project(tmp_path, kafka, shop, trains), trains) as client:

        async def send(op: str, key: str, body: Any = TRIP) -> tuple[int, Any]:
            name = {"undo": "Saga-Undoes", "confirm": "Saga-Confirms"}.get(op, "Idempotency-Key")
            response = await client.post(f"/{op}", json=body, headers={name: key})
            return response.status_code, response.json()

        a, b, c, d, e, f = (f"trip-{uuid.uuid4().hex[:8]}/{name}" for name in "abcdef")
        full = (422, {"error": "no seats left", "details": {"seats": 500}})
        assert await send("do", a, {**TRIP, "seats": 500}) == full
        # A rejection is remembered, whatever the same key asks for later, and there is nothing to undo or to confirm.
        assert await send("do", a) == full
        assert (await send("undo", a))[0] == 200
        assert await send("do", a) == full
        assert (await send("confirm", a))[0] == 409
        # An undo that comes first is remembered, and its command refused; the probe says so, and seals by asking.
        assert await send("undo", b) == (200, None)
        assert (await send("do", b))[0] == 409
        assert await send("probe", c) == (200, {"state": "absent"})
        assert (await send("do", c))[0] == 409
        # A duplicate waits for the first one, and confirms are repeated.
        slow = {"trip": "slow", "seats": 3}
        assert await asyncio.gather(*(send("do", d, slow) for _ in range(3))) == [(200, slow)] * 3
        assert await send("probe", d) == (200, {"state": "done", "result": slow})
        assert [await send("confirm", d, slow) for _ in range(2)] == [(200, "slow is final")] * 2
        assert (await send("undo", d))[0] == 409
        # Other arguments under a key that was done: no rejection, which would say that nothing happened.
        assert (await send("do", d))[0] == 400
        assert (await send("do", "", TRIP))[0] == 400
        # What is not one key is none: two of them could be taken for one.
        for given in (["x%ff"], ["x%fe"], ["x", "y"]):
            answer = await client.post("/do", json=TRIP, headers=[("Idempotency-Key", key) for key in given])
            assert (answer.status_code, "must be one key" in answer.text) == (400, True)
        assert (await send("do", e, {"trip": "t"}))[0] == 422
        assert (await send("do", e, [1]))[0] == 422
        assert (await send("do", f, {"trip": "forgotten", "seats": 1}))[0] == 500
        assert "write `await command.sql.execute(…)`" in caplog.text
    assert await shop.effects() == [(d, 3)]
    assert [value for _, value in await shop.outbox("booked")] == [{"seats": 3}]


async def test_events_have_the_saga_of_their_command(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    """Over HTTP as over Kafka; without the header, or with one that no table holds, they have none."""
    trains = trains_on("unused")
    given = [None, "order-7", "best%C3%A4tigt 7", "x" * 2000]
    async with over_http(made_project(tmp_path, kafka, shop, trains), trains) as client:
        for number, saga_id in enumerate(given):
            headers = {"Idempotency-Key": f"key-{number}/train", **({} if saga_id is None else {"Saga-Id": saga_id})}
            assert (await client.post("/do", json=TRIP, headers=headers)).status_code == 200
    async with shop.engine.connect() as connection:
        rows = await connection.execute(text("select saga_id from saga_outbox where topic = 'booked' order by id"))
        assert list(rows.scalars()) == ["", "order-7", "best\u00e4tigt 7", ""]


def test_a_class_that_is_no_participant_is_refused() -> None:
    class Half:
        async def do(self, command: Command) -> None: ...

    with pytest.raises(UsageError, match="the participant Half has no method undo"):
        participant("t", connection="shop")(Half)
    with pytest.raises(UsageError, match="Half is not a participant"):
        http_app(Half)

    @participant("t", connection="shop")
    class Wrong:
        async def do(self, trip: str) -> None: ...

        async def undo(self, command: Command) -> None: ...

    with pytest.raises(UsageError, match="first parameter of do must be `command: Command`"):
        _ = Wrong.__saga_reader__.actions  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_command_that_cannot_be_carried_out_is_rejected_and_a_dead_letter(
    kafka: Broker, shop: Shop, tmp_path: Path
) -> None:
    topic = kafka.create_topic()

    @participant(topic, connection="shop", max_attempts=2)
    class Broken:
        async def do(self, command: Command) -> None:
            await command.sql.execute("insert into effect (what, number) values ('broken', 1)")
            raise RuntimeError("disk full")

        async def undo(self, command: Command) -> None: ...

    project = made_project(tmp_path, kafka, shop, Broken)
    step = kafka_step(project.settings, topic, None, {"data": {}}, None)
    async with over_kafka(project):
        with pytest.raises(Exception, match="disk full"):
            await run_participant_test(project.settings, step, timeout=20)
        group = f"{project.settings.kafka.prefix}-consumer-Broken"
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    assert await shop.effects() == []
    assert len(kafka.read_committed(f"{topic}.dlq")) == 1


@on_every_database
async def test_a_consumer_that_is_sent_commands_keeps_every_promise(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=4)

    @consumer(topic, connection="shop", name="hotel")
    async def hotel(message: Message) -> dict[str, Any]:
        match message.headers["sagaop"]:
            case "do":
                insert = "insert into effect (what, number) values (:key, :n) returning id"
                row = await message.sql.one(insert, key=message.headers["sagakey"], n=message.value["nights"])
                return {"id": row.id}
            case "undo":
                key = message.headers["sagaundoes"]
                await message.sql.execute("delete from effect where what = :key", key=key)
        return {"at": message.headers["sagakey"]}

    project = made_project(tmp_path, kafka, shop, hotel)
    data = {"nights": 2}
    step = kafka_step(project.settings, topic, None, {"data": data, "confirm-data": data}, None)
    async with over_kafka(project):
        results = await run_participant_test(project.settings, step, timeout=20)
    assert verdicts_but_passed(results) == NOT_OVER_KAFKA
    assert [number for _, number in await shop.effects()] == [2]
