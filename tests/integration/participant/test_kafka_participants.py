"""`saga participant test` with commands in Kafka: each broken promise is reported by its check alone."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from saga_workers.participant.checks import CHECKS
from saga_workers.participant.participant_test import kafka_step, run_participant_test
from saga_workers.participant.trial import COPIES
from saga_workers.runtime.http_server import HttpServer
from sagas.errors import SagaError
from sagas.settings import Settings, load_settings
from tests.helpers.forked_commands import run_command
from tests.helpers.kafka_broker import Broker
from tests.helpers.sampling import mostly_slow
from tests.integration.participant.faulty_responder import PARTITIONS, FaultyResponder

NAMES = [check.name for check in CHECKS if check.name not in ("response cut off", "in progress")]
QUICK_CHECKS = {"undo before do", "concurrent duplicates"}
BODIES = {"data": {"nights": 1}, "confirm-data": None}


@contextmanager
def responding(kafka: Broker, responder: FaultyResponder) -> Iterator[str]:
    """The topic of commands that a responder serves."""
    topic = kafka.create_topic(partitions=PARTITIONS)
    stopping = threading.Event()
    thread = threading.Thread(target=responder.run, args=(kafka, topic, stopping))
    thread.start()
    try:
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


def step(settings: Settings, topic: str, count: dict[str, Any] | None = None) -> Any:
    rejected = kafka_step(settings, topic, None, {**BODIES, "data": {"nights": 500}}, count)
    return replace(kafka_step(settings, topic, None, BODIES, count), rejected=rejected)


async def broken_promises(
    kafka: Broker, settings: Settings, responder: FaultyResponder, *, counted: bool = True, timeout: float = 20
) -> set[str]:
    """The checks that report the responder, with or without a count of its effects."""
    async with HttpServer("127.0.0.1:0", responder.app, option="--address", description="the count") as server:
        count = {"url": f"http://127.0.0.1:{server.port}/count", "result": "response.json"} if counted else None
        with responding(kafka, responder) as topic:
            results = await run_participant_test(settings, step(settings, topic, count), timeout=timeout)
    verdicts = {result.check: result.verdict for result in results}
    assert {result.proposal for result in results if result.verdict == "passed"} == {None}
    assert (verdicts.pop("response cut off"), verdicts.pop("in progress")) == ("skipped", "skipped")
    assert list(verdicts) == NAMES
    assert set(verdicts.values()) <= {"passed", "failed"}
    return {name for name, verdict in verdicts.items() if verdict == "failed"}


async def test_a_responder_that_keeps_its_promises_passes(kafka: Broker, settings: Settings) -> None:
    responder = FaultyResponder()
    assert await broken_promises(kafka, settings, responder) == set()
    assert responder.effects == {}
    # As with a relay and redeliveries, a key has one id and one token; concurrent duplicates have a partition each.
    for commands in responder.deliveries.values():
        assert len({(command.headers["ce_id"], command.headers["sagatoken"]) for command in commands}) == 1
    assert max(len({command.partition for command in commands}) for commands in responder.deliveries.values()) == COPIES


@pytest.mark.parametrize("fault", mostly_slow(NAMES, QUICK_CHECKS))
async def test_each_broken_promise_is_reported_by_its_check_alone(
    kafka: Broker, settings: Settings, fault: str
) -> None:
    assert await broken_promises(kafka, settings, FaultyResponder(fault)) == {fault}


@pytest.mark.slow
async def test_an_effect_with_the_same_reply_shows_only_with_a_count(kafka: Broker, settings: Settings) -> None:
    assert await broken_promises(kafka, settings, FaultyResponder("same key twice"), counted=False) == set()


@pytest.mark.slow
async def test_no_reply_to_a_duplicate_breaks_what_duplicates_are_promised(kafka: Broker, settings: Settings) -> None:
    responder = FaultyResponder(repeats_replies=False)
    assert await broken_promises(kafka, settings, responder, timeout=5) == {
        "same key twice",
        "same key, other arguments",
        "do after undo",
        "undo twice",
        "confirm twice",
        "remembered rejection",
        "concurrent duplicates",
    }


async def test_a_reply_without_the_token_is_not_accepted(kafka: Broker, settings: Settings) -> None:
    with (
        responding(kafka, FaultyResponder(token="wrong")) as topic,
        pytest.raises(SagaError, match="sagatoken is not that of"),
    ):
        await run_participant_test(settings, step(settings, topic), timeout=20)


async def test_nobody_replies(kafka: Broker, settings: Settings) -> None:
    with pytest.raises(SagaError, match=r"no reply within 2 s") as error:
        await run_participant_test(settings, step(settings, kafka.create_topic()), timeout=2)
    assert error.value.exit_code == 1
    with pytest.raises(SagaError, match="the topic nowhere does not exist"):
        await run_participant_test(settings, step(settings, "nowhere"), timeout=0.5)


OPTIONS_OF_ANOTHER = {
    "undo": ["--topic", "t", "--undo", "POST http://127.0.0.1:1/x"],
    "connection": ["--topic", "t", "--connection", "hotel"],
    "reply topic": ["--do", "POST http://127.0.0.1:1/x", "--reply-topic", "replies"],
    "confirm data": ["trip", "reserve", "--confirm-data", "1"],
}


@pytest.mark.parametrize("words", mostly_slow(OPTIONS_OF_ANOTHER, {"undo", "reply topic"}, OPTIONS_OF_ANOTHER))
def test_an_option_of_another_transport_is_refused(tmp_path: Path, words: list[str]) -> None:
    refused = run_command(["participant", "test", *words], tmp_path)
    assert refused.returncode == 2
    target = "a saga" if words[0] == "trip" else words[0]
    assert f"{words[2]} cannot be combined with {target}" in refused.stderr
