"""A process that serves a `@participant` is killed again and again: each key has one effect, and one answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TriggerProcess
from tests.helpers.waiting import until, until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fresh, fully_consumed, write_project
from tests.integration.participant.shops import DATABASES, Shop, open_shop

MODULE = """
from sagas import Command, participant

@participant("{topic}", connection="shop", name="seats")
class Seats:
    async def do(self, command: Command, n: int) -> dict:
        await command.sql.execute("insert into effect (what, number) values (:key, :n)", key=command.key, n=n)
        return {{"n": n}}

    async def undo(self, command: Command) -> None:
        await command.sql.execute("delete from effect where what = :key", key=command.key)
"""
ROUNDS, COMMANDS = 6, 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATABASES)
async def test_a_kill_at_any_time_leaves_one_effect_and_one_answer(
    kafka: Broker, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with open_shop(kind, request, tmp_path) as shop:
        await kill_again_and_again(kafka, shop, tmp_path)


async def kill_again_and_again(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic, prefix = kafka.create_topic(partitions=4), fresh("p")
    module = MODULE.format(topic=topic)
    folder = write_project(
        tmp_path / "project", kafka, temporal="127.0.0.1:1", database=shop.url, prefix=prefix, module=module
    )
    process = TriggerProcess("trigger", folder).start()
    try:
        for round in range(ROUNDS):
            for number in range(round * COMMANDS, (round + 1) * COMMANDS):
                key = f"trip-{number}/seat"
                headers = {"sagakey": key, "sagaop": "do", "sagareplyto": "answers", "sagatoken": "t"}
                undo = {**headers, "sagakey": f"{key}/undo", "sagaop": "undo", "sagaundoes": key}
                # Every third key is undone, in another partition than its command: mostly before it.
                if number % 3 == 0:
                    kafka.produce(topic, {"n": number}, key=f"undo-{number}", headers=undo)
                kafka.produce(topic, {"n": number}, key=key, headers=headers)

            async def answered(wanted: int = round * COMMANDS) -> bool:
                return len(await shop.outbox("answers")) > wanted

            await until(answered)
            process.kill()
            process.start()
        await until_in_thread(lambda: fully_consumed(kafka, f"{prefix}-consumer-seats", topic))
    finally:
        await asyncio.to_thread(process.kill)
    total = ROUNDS * COMMANDS
    effects = Counter(key for key, _ in await shop.effects())
    assert effects == Counter(f"trip-{number}/seat" for number in range(total) if number % 3)
    answers: dict[str, set[str]] = {}
    for headers, value in await shop.outbox("answers"):
        answers.setdefault(headers["sagakey"], set()).add(f"{headers['sagaoutcome']} {value}")
    assert len(answers) == total + total // 3
    for number in range(total):
        given = answers[f"trip-{number}/seat"]
        done = {f"done {{'n': {number}}}"}
        # One that was undone was done before, refused after, or first the one and, delivered again, the other.
        assert given == done if number % 3 else len(given - done) <= 1
