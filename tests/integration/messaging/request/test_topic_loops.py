"""Topics are created again, and the process that reads them is killed, again and again: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from saga_workers.temporal.temporal_runs import list_runs
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer, TriggerProcess
from tests.helpers.waiting import until
from tests.integration.messaging.request.request_environment import Environment, open_environment

READERS = """
from __future__ import annotations

from sagas import Message, bridge, consumer

NOTE = "insert into effect (what, number) values (:what, :number)"


@consumer("PREFIX-events", connection="shop")
async def note(message: Message) -> None:
    await message.sql.execute(NOTE, what="consumed", number=message.value)


@bridge("PREFIX-source", to="PREFIX-target")
def copy(message: Message) -> object:
    return message.value


@consumer("PREFIX-commands", connection="shop")
async def desk(message: Message) -> dict:
    await message.sql.execute(NOTE, what="booked", number=message.value["number"])
    return {"number": message.value["number"]}
"""

STARTED = """
    saga: started
    id: "PREFIX-${{ input }}"
    input: {type: integer}
    triggers: {kafka: {topic: PREFIX-started}}
    steps:
      - {id: there, uses: wait, with: {signal: never, timeout: 1h, on_timeout: reject}}
"""

ASK = """
    saga: ask
    input: {type: object, required: [number], properties: {number: {type: integer}}}
    steps:
      - id: book
        uses: kafka.request
        with: {topic: PREFIX-commands, value: {number: "${{ input.number }}"}}
        compensate: kafka.request
    output: "${{ steps.book.result }}"
"""

TOPICS = ("events", "source", "started", "commands", "replies")
EVENTS, REQUESTS = 12, 4
"""Records of each topic, and sagas with a command, in each round."""


class Loops:
    """The readers of a project in a process of their own, and what they must have done by now."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.process = TriggerProcess("trigger", env.folder, "--grace", "5s")
        self.sent = 0
        self.asked: list[str] = []
        self.choose = random.Random(7)

    def topic(self, name: str) -> str:
        return f"{self.env.prefix}-{name}"

    async def execute(self, statement: str) -> list[Any]:
        async with self.env.engine.connect() as connection:
            result = await connection.exec_driver_sql(statement)
            return list(result.all()) if result.returns_rows else []

    async def send(self, many: int) -> None:
        """New events for all readers, and sagas with commands."""
        numbers = range(self.sent, self.sent + many)
        self.sent = numbers.stop
        for name in ("events", "source", "started"):
            await asyncio.to_thread(self.env.kafka.produce, self.topic(name), *numbers)
        for number in list(numbers)[:REQUESTS]:
            self.asked.append(await self.env.begin("ask", number=number))

    async def create_again(self) -> None:
        for name in TOPICS:
            await asyncio.to_thread(self.env.kafka.delete_topic, self.topic(name))
            await asyncio.to_thread(self.env.kafka.create_topic, self.topic(name), partitions=2)

    async def done(self, what: str) -> list[int]:
        rows = await self.execute(f"select number from effect where what = '{what}'")
        return [number for (number,) in rows]

    async def counts(self) -> dict[str, Counter[int]]:
        """How often each number was handled, by reader."""
        copied = await asyncio.to_thread(self.env.kafka.read_committed, self.topic("target"))
        query = f"WorkflowType = 'started' AND WorkflowId STARTS_WITH '{self.env.prefix}-'"
        runs = [run.id async for run in list_runs(self.env.client.temporal, query)]
        return {
            "consumer": Counter(await self.done("consumed")),
            "bridge": Counter(record.json() for record in copied),
            "trigger": Counter(int(run.rsplit("-", 1)[1]) for run in runs),
        }

    async def is_settled(self) -> bool:
        return all(len(count) == self.sent for count in (await self.counts()).values())

    async def settled(self) -> None:
        """All that was sent has been handled, by a process that has not ended by itself."""
        try:
            await until(self.is_settled, limit=240)
        finally:
            missing = {name: self.sent - len(count) for name, count in (await self.counts()).items()}
            assert (self.process.running, missing) == (True, dict.fromkeys(missing, 0))
        for saga_id in self.asked[-EVENTS:]:
            assert (await self.env.ended(saga_id, "240s"))["state"] == "COMPLETED"

    async def kill(self) -> None:
        await asyncio.sleep(self.choose.uniform(0.2, 4.0))
        await asyncio.to_thread(self.process.kill)
        self.process.launch()

    async def check(self) -> dict[str, tuple[int, int]]:
        """Lost and doubled, by reader: all are zero."""
        counts = await self.counts()
        booked = Counter(await self.done("booked"))
        asked = [await self.env.ended(saga_id) for saga_id in self.asked]
        faults = {name: _faults(count, range(self.sent)) for name, count in counts.items()}
        faults["command topics"] = _faults(booked, (story["input"]["number"] for story in asked))
        unanswered = sum(story["state"] != "COMPLETED" for story in asked)
        repeated = sum(story["steps"][0]["attempts"] != 1 for story in asked)
        faults["replies"] = unanswered, repeated
        dead = [topic for topic in self.env.kafka.topics() if topic in {f"{self.topic(name)}.dlq" for name in TOPICS}]
        letters = [record.headers["sagadlqreason"] for topic in dead for record in self.env.kafka.read_committed(topic)]
        assert letters == []
        return faults


def _faults(count: Counter[int], expected: Iterable[int]) -> tuple[int, int]:
    numbers = set(expected)
    assert set(count) <= numbers
    return len(numbers - set(count)), sum(times - 1 for times in count.values())


@pytest.mark.slow  # test_created_again.py and test_process_ends.py have each of them alone
@pytest.mark.parametrize("rounds", [20])
async def test_topics_created_again_and_kills(
    tmp_path: Path, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer, rounds: int
) -> None:
    """In each round a kill while all readers work; then, in every second one while nothing reads, other topics."""
    async with open_environment(
        tmp_path / "project", temporal, kafka, postgres_server, STARTED, ASK, serving=False, listening=False
    ) as env:
        env.participant.kill()
        for name in (*TOPICS[:3], "target"):
            kafka.create_topic(f"{env.prefix}-{name}")
        env.folder.joinpath("saga_actions.py").write_text(READERS.replace("PREFIX", env.prefix), encoding="utf-8")
        env.project = Project(load_settings(env.folder))
        loops = Loops(env)
        await loops.execute("create table effect (id bigserial primary key, what text, number int)")
        async with running_worker(env.project):
            loops.process.launch()
            try:
                for number in range(rounds):
                    await loops.send(EVENTS)
                    await loops.kill()
                    await loops.settled()
                    if number % 2:
                        await asyncio.to_thread(loops.process.wait)  # SIGTERM ends a process that is only starting
                        assert await asyncio.to_thread(loops.process.stop) == 0
                    await loops.create_again()
                    await loops.send(loops.choose.choice([3, EVENTS, 5 * EVENTS]))
                    if number % 2:
                        loops.process.launch()
                    await loops.settled()
                counts = await loops.check()
                print(f"{rounds} rounds, {loops.sent} records each: (lost, doubled) {counts}")
            finally:
                await asyncio.to_thread(loops.process.kill)
    assert set(counts.values()) == {(0, 0)}
