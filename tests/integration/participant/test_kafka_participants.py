"""`saga participant test` with commands in Kafka: responders that keep their promises, and some that do not."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from saga_workers.participant.checks import CHECKS
from saga_workers.participant.participant_test import kafka_step, run_participant_test
from sagas.errors import SagaError
from sagas.settings import Settings, load_settings
from tests.helpers.kafka_broker import Broker

KAFKA_CHECKS = [check.name for check in CHECKS if check.name != "response cut off"]


class Responder:
    """A participant: its replies by key, and the keys that were undone. ``fault`` is what it does wrong."""

    def __init__(self, fault: str | None) -> None:
        self.fault = fault
        self.replies: dict[str, tuple[str, Any]] = {}
        self.undone: set[str] = set()

    def reply(self, headers: dict[str, str]) -> tuple[str, Any]:
        key, op = headers["sagakey"], headers["sagaop"]
        if key in self.replies and not (self.fault == "forgets" and op == "do"):
            return self.replies[key]
        if op == "do" and key in self.undone:
            outcome, value = "rejected", {"reason": "it was undone"}
        elif op == "confirm" and key.removesuffix("/confirm") in self.undone and self.fault != "confirms":
            outcome, value = "failed", {"reason": "it was undone"}
        else:
            outcome, value = "done", {"id": uuid.uuid4().hex}
        if op == "undo" and not (self.fault == "no tombstone" and headers["sagaundoes"] not in self.replies):
            self.undone.add(headers["sagaundoes"])
        self.replies[key] = (outcome, value)
        return outcome, value

    def run(self, address: str, topic: str, stopping: threading.Event, ready: Callable[[], None]) -> None:
        from confluent_kafka import Consumer, Producer

        producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0})
        group = {"group.id": f"{topic}-responder", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": address, "isolation.level": "read_committed", **group})
        consumer.subscribe([topic], on_assign=lambda *_: ready())
        while not stopping.is_set():
            message: Any = consumer.poll(0.05)
            if message is None or message.error() is not None:
                continue
            headers = {name: text.decode() for name, text in message.headers()}
            outcome, value = self.reply(headers)
            token = "wrong" if self.fault == "wrong token" else headers["sagatoken"]
            producer.produce(
                headers["sagareplyto"],
                json.dumps(value).encode(),
                headers={"sagakey": headers["sagakey"], "sagatoken": token, "sagaoutcome": outcome},
            )
            producer.flush()
        consumer.close()


@contextmanager
def responding(kafka: Broker, fault: str | None) -> Iterator[str]:
    """The topic of commands that a responder serves."""
    topic = kafka.create_topic(partitions=2)
    stopping, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=Responder(fault).run, args=(kafka.address, topic, stopping, ready.set))
    thread.start()
    try:
        assert ready.wait(60)
        yield topic
    finally:
        stopping.set()
        thread.join()


@pytest.fixture
def settings(tmp_path: Path, kafka: Broker) -> Settings:
    prefix = f"t{uuid.uuid4().hex[:8]}"
    text = f'[kafka]\nbootstrap_servers = "{kafka.address}"\nprefix = "{prefix}"\n'
    (tmp_path / "saga.toml").write_text(text, encoding="utf-8")
    return load_settings(tmp_path)


def step(settings: Settings, topic: str) -> Any:
    return kafka_step(settings, topic, None, {"data": {"nights": 1}, "confirm-data": None}, None)


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (None, set()),
        ("forgets", {"same key twice", "same key, other arguments", "concurrent duplicates"}),
        ("no tombstone", {"undo before do"}),
        ("confirms", {"confirm after undo"}),
    ],
)
async def test_responders(kafka: Broker, settings: Settings, fault: str | None, broken: set[str]) -> None:
    with responding(kafka, fault) as topic:
        results = await run_participant_test(settings, step(settings, topic), timeout=20)
    verdicts = {one.check: one.verdict for one in results}
    assert verdicts.pop("response cut off") == "not tested"
    assert verdicts == {name: "broken" if name in broken else "kept" for name in KAFKA_CHECKS}


async def test_a_reply_without_the_token_is_not_accepted(kafka: Broker, settings: Settings) -> None:
    with responding(kafka, "wrong token") as topic, pytest.raises(SagaError, match="sagatoken is not that of"):
        await run_participant_test(settings, step(settings, topic), timeout=20)


async def test_nobody_replies(kafka: Broker, settings: Settings) -> None:
    with pytest.raises(SagaError, match=r"no reply within 0\.5 s") as error:
        await run_participant_test(settings, step(settings, kafka.create_topic()), timeout=0.5)
    assert error.value.exit_code == 1
    with pytest.raises(SagaError, match="the topic nowhere does not exist"):
        await run_participant_test(settings, step(settings, "nowhere"), timeout=0.5)
