"""An event that signals a saga stays in its topic until the worker of the saga has the key of the signal."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagas.project import Project
from sagas.settings.codec import CodecSettings
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fresh, fully_consumed, project_of, triggering

WAITS = """
    saga: {saga}
    triggers: {{kafka: {{topic: {topic}, id: "{saga}-${{{{ trigger.value.order }}}}", signal: paid}}}}
    steps:
      - {{id: pay, uses: wait, with: {{signal: paid}}}}
"""
EARLIER, LATER = "a" * 64, "b" * 64


async def test_an_event_waits_for_the_key_of_the_worker(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, saga, settings = kafka.create_topic(), fresh("keyless"), kafka.settings()
    definitions = {saga: WAITS.format(saga=saga, topic=topic)}
    made = project_of(tmp_path, settings, temporal.address, definitions=definitions)
    before, after = (
        Project(made.settings.model_copy(update={"codec": CodecSettings(key=key)}), made.actions)
        for key in (EARLIER, f"{LATER} {EARLIER}")
    )
    group = f"{settings.prefix}-trigger-{saga}-{topic}"
    async with triggering(after):
        async with running_worker(before) as client:
            await client.start(saga, {}, id=f"{saga}-1")
            kafka.produce(topic, {"order": 1}, key="a")
            await until_in_thread(lambda: "does not have the key" in caplog.text)
            assert not fully_consumed(kafka, group, topic)
        async with running_worker(after) as client:
            assert (await finished(client, f"{saga}-1"))["state"] == "COMPLETED"
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    assert not kafka.read_committed(f"{topic}.dlq")
