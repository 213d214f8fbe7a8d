"""Two events are one only if their ids and their sources are equal: consumers, triggers and bridges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from saga_workers.temporal.temporal_runs import list_runs
from sagas import Event, Message, action, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    Shop,
    count,
    fresh,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
)

SOURCES = ("/devices/39141", "/devices/42651", "/devices/12793")
"""Of the first two, the first 32 bits of SHA-256 are equal."""

NOTING = """
    saga: {saga}
    input: {{type: object, required: [what], properties: {{what: {{type: string}}}}}}
    triggers: {{kafka: {{topic: {topic}}}}}
    steps:
      - {{id: note, uses: identity.note, with: {{what: "${{{{ input.what }}}}"}}, effect: none}}
"""


@action("identity.note")
async def note(what: str) -> Any:
    return {"noted": what}


@pytest.fixture
async def shop(postgres_server: DatabaseServer) -> Shop:
    return await open_shop(postgres_server)


async def test_a_consumer_handles_the_event_of_each_source(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic = kafka.create_topic()

    @consumer(topic, connection="shop", name="devices")
    async def devices(message: Message) -> None:
        await message.sql.execute("insert into effect (what, number) values (:what, 1)", what=message.value["what"])

    project = project_of(tmp_path, kafka.settings(), "127.0.0.1:1", readers=[devices], connections={"shop": shop.url})
    for _ in range(2):
        for source in SOURCES:
            kafka.produce(topic, {"what": "alarm"}, key="k", headers={"ce_id": "1", "ce_source": source})
    async with triggering(project) as metrics:
        group = f"{project.settings.kafka.prefix}-consumer-devices"
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        assert count(metrics, "saga_dead_letters_total") == 0
    assert shop.effects() == [("alarm", 1)] * len(SOURCES)


async def test_a_trigger_starts_a_saga_for_each_source(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> None:
    topic, saga, settings = kafka.create_topic(), fresh("device"), kafka.settings()
    definitions = {saga: NOTING.format(saga=saga, topic=topic)}
    project = project_of(tmp_path, settings, temporal.address, actions=[note], definitions=definitions)
    for _ in range(2):
        for source in SOURCES:
            kafka.produce(topic, {"what": "alarm"}, key="k", headers={"ce_id": "1", "ce_source": source})

    async with running_worker(project) as client, triggering(project) as metrics:

        async def sagas() -> bool:
            runs = [run.id async for run in list_runs(client.temporal, f"WorkflowType = '{saga}'")]
            return len(set(runs)) == len(SOURCES)

        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-trigger-{saga}-{topic}", topic))
        await until_in_thread(sagas)
        assert count(metrics, "saga_dead_letters_total") == 0
        assert count(metrics, "saga_trigger_started_total") == len(SOURCES)
        assert count(metrics, "saga_trigger_existing_total") == len(SOURCES)


async def test_events_of_a_bridge_have_ids_of_their_own(kafka: Broker, tmp_path: Path) -> None:
    source, target = kafka.create_topic(), kafka.create_topic()

    @bridge(source, to=target, name="parts", max_attempts=1)
    def parts(message: Message) -> object:
        events = [Event(target, key="k", value=message.value) for _ in range(message.value)]
        return events if len(events) > 1 else events[0]

    project = project_of(tmp_path, kafka.settings(), "127.0.0.1:1", readers=[parts])
    kafka.produce(source, 2, key="k", headers={"ce_id": "order"})
    kafka.produce(source, 1, key="k", headers={"ce_id": "order-1"})
    async with triggering(project) as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, f"{project.settings.kafka.prefix}-bridge-parts", source))
        assert count(metrics, "saga_dead_letters_total") == 0
    ids = [record.headers["ce_id"] for record in kafka.read_committed(target)]
    assert (len(ids), len(set(ids))) == (3, 3)
