"""A trigger whose connection to Temporal a firewall has forgotten: its events start their sagas over another one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from saga_workers.temporal.temporal_client import connect
from saga_workers.temporal.temporal_runs import list_runs
from tests.helpers.fault_proxy import fault_proxy
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.messaging.trigger.trigger_environment import NOTE, count, fresh, project_of, triggering


@pytest.mark.slow
async def test_a_trigger_replaces_a_forgotten_connection(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saga, topic = fresh("forgotten"), kafka.create_topic()
    definitions = {"forgotten": NOTE.format(saga=saga, topic=topic)}
    async with fault_proxy(int(temporal.address.rpartition(":")[2])) as proxy:
        project = project_of(tmp_path, kafka.settings(), f"127.0.0.1:{proxy.port}", definitions=definitions)
        async with triggering(project) as metrics:
            kafka.produce(topic, 1)
            await until(lambda: count(metrics, "saga_trigger_started_total") == 1)
            await asyncio.sleep(1)
            proxy.forget()
            began = time.monotonic()
            kafka.produce(topic, 2)
            await until(lambda: count(metrics, "saga_trigger_started_total") == 2)
            waited = time.monotonic() - began
            assert count(metrics, "saga_dead_letters_total") == 0
        client = await connect(project.settings)
        assert len([run async for run in list_runs(client, f"WorkflowType = '{saga}'")]) == 2
    print(f"waited {waited:.1f} s")
    assert waited < 20, waited  # ten seconds until the check, and three for its answer
    assert not [record.getMessage() for record in caplog.records if record.exc_info], "that is not a bug"
