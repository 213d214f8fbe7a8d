"""A reply that ends the process that reads it, again and again: it becomes a dead letter, and other replies go on."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from saga_workers.trigger import replies
from saga_workers.trigger.retry import USUAL_ATTEMPTS
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import CommandProcess, TemporalServer, http_get
from tests.helpers.waiting import until
from tests.integration.messaging.trigger.trigger_environment import fully_consumed, write_project
from tests.integration.operators.reader_states import ASKS, Readers

OTHERS = [f"s/{number}" for number in range(40)]
INSERT = "insert into saga_request (step_key, saga_id, step, generation, op, reply_topic, created_at) values"
ENDED = re.compile(r"^saga_trigger_ended_attempts\{.*\} (\d+)", re.MULTILINE)


def end_at_poison() -> None:
    """Let one reply end this process, as a bug in a library would."""
    usual = replies.decode_reply

    def decode_reply(topic: str, headers: Any, value: bytes | None) -> Any:
        if headers["sagakey"] == "s/poison":
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(topic, headers, value)

    replies.decode_reply = decode_reply


def _project(readers: Readers, broker: Broker, temporal: str) -> Path:
    folder = write_project(
        readers.project.settings.root / "project",
        broker,
        temporal=temporal,
        database=readers.project.settings.sql_connection("shop").url,
        prefix=readers.project.settings.kafka.prefix,
        module="",
    )
    (folder / "asks.saga.yaml").write_text(ASKS.replace("PREFIX", readers.project.settings.kafka.prefix))
    settings = folder / "saga.toml"  # a process that was killed is missed sooner
    text = settings.read_text().replace('"6000"', '"2000"').replace('"1000"', '"400"')
    settings.write_text(text.replace("[kafka]\n", '[kafka]\noutbox = "shop"\n'))
    return folder


@pytest.mark.slow
async def test_it_is_a_dead_letter_and_the_others_go_on(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path
) -> None:
    readers = await Readers.make(tmp_path, kafka, replies=temporal.address)
    folder = _project(readers, kafka, temporal.address)
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as database:
        for key in ("s/poison", *OTHERS):
            database.execute(f"{INSERT} (?, 's', 'x', 1, 'do', ?, 0)", (key, readers.topic))

    def recorded() -> int:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
            return database.execute("select count(*) from saga_request where outcome = 'done'").fetchone()[0]

    for key in (*OTHERS[:20], "s/poison", *OTHERS[20:]):
        kafka.produce(readers.topic, {}, key=key, headers={"sagakey": key, "sagaoutcome": "done"})
    scraped, reported = [0], set[str]()

    def look(process: CommandProcess) -> None:
        status, text = http_get(process.health_port, "/metrics")
        if status == 200:
            scraped.append(max(map(int, ENDED.findall(text.decode())), default=0))

    process = CommandProcess("trigger", folder, "trigger", "--grace", "5s", first=end_at_poison)
    ends, before_last = 0, 0
    process.launch()
    try:
        # The broker is asked late: a question costs as much as many looks at the process.
        while recorded() < len(OTHERS) or not await asyncio.to_thread(
            fully_consumed, kafka, readers.group, readers.topic
        ):
            await asyncio.to_thread(look, process)
            if not process.running:
                ends, before_last = ends + 1, recorded()
                assert ends <= USUAL_ATTEMPTS + 1, process.tail(100)
                if ends > 2:
                    reported |= {result.message for result in (await readers.doctor()).values() if not result.ok}
                process.launch()
            await asyncio.sleep(0.02)
        await until(lambda: recorded() == len(OTHERS))
        assert process.stop() == 0
    finally:
        process.kill()
    assert ends >= USUAL_ATTEMPTS
    assert before_last > 20, "replies of other partitions were recorded while one ended the process"
    [letter] = kafka.read_committed(f"{readers.topic}.dlq")
    reason = f"it ended its process {USUAL_ATTEMPTS} times"
    assert (letter.headers["sagakey"], letter.headers["sagadlqreason"]) == ("s/poison", reason)
    assert max(scraped) >= 2, "SagaReaderCrashLoop"
    assert any("a process was ended while the listener for replies handled" in message for message in reported)
    assert [result for result in (await readers.doctor()).values() if result.ok is False] == []
