"""A process that runs for long reads for the triggers of definitions that are added, changed and removed meanwhile."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from saga_workers.client import Client
from saga_workers.temporal.temporal_runs import list_runs
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import count, fresh, project_of, triggering

SAGA = """
    saga: {saga}
    input: {{type: object, required: [{field}], properties: {{{field}: {{type: string}}}}, additionalProperties: false}}
    triggers: {{kafka: {{topic: {topic}, input: {{{field}: "${{{{ trigger.value.text }}}}"}}}}}}
    steps: [{{id: pass, uses: pass}}]
    output: "${{{{ input.{field} }}}}"
"""
UNTRIGGERED = "saga: {saga}\nsteps: [{{id: pass, uses: pass}}]\n"


@pytest.mark.slow
async def test_definitions_that_change(kafka: Broker, temporal: TemporalServer, tmp_path: Path) -> None:
    changed, added, topic, later = fresh("changed"), fresh("added"), kafka.create_topic(), kafka.create_topic()
    definitions = {changed: SAGA.format(saga=changed, topic=topic, field="what")}
    project = project_of(tmp_path, kafka.settings(), temporal.address, definitions=definitions)

    async with running_worker(project) as client, triggering(project) as metrics:
        kafka.produce(topic, {"text": "first"}, key="k")
        await until_in_thread(lambda: count(metrics, "saga_trigger_started_total") == 1)

        # Its input has another field now, and so does the trigger: one without the other would be a dead letter.
        _write(tmp_path, changed, SAGA.format(saga=changed, topic=topic, field="which"))
        _write(tmp_path, added, SAGA.format(saga=added, topic=later, field="what"))
        for number in range(20):
            kafka.produce(topic, {"text": f"number {number}"}, key="k")
        kafka.produce(later, {"text": "second"}, key="k")
        await until_in_thread(lambda: count(metrics, "saga_trigger_started_total") == 22)
        assert count(metrics, "saga_dead_letters_total") == 0
        assert len(await _ids(client, changed)) == 21
        [id] = await _ids(client, added)
        assert await client.temporal.get_workflow_handle(id).result() == "second"

        _write(tmp_path, changed, UNTRIGGERED.format(saga=changed))
        await until_in_thread(lambda: _readers(metrics) == [later])


async def test_a_trigger_that_changes_alone(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a filter nor an id of a trigger is part of the digest of its definition."""
    caplog.set_level("INFO", "saga.trigger")
    saga, topic = fresh("filtered"), kafka.create_topic()
    text = SAGA.format(saga=saga, topic=topic, field="what")
    project = project_of(tmp_path, kafka.settings(), temporal.address, definitions={saga: text})
    async with running_worker(project) as client, triggering(project) as metrics:
        kafka.produce(topic, {"text": "first"}, key="k")
        await until_in_thread(lambda: count(metrics, "saga_trigger_started_total") == 1)
        narrowed = (
            f"""topic: {topic}, filter: "trigger.value.text != 'none'", id: "{saga}-${{{{ trigger.value.text }}}}","""
        )
        _write(tmp_path, saga, text.replace(f"topic: {topic},", narrowed))
        await until_in_thread(lambda: "reads with the definition as it is now" in caplog.text)
        kafka.produce(topic, {"text": "none"}, key="k")
        kafka.produce(topic, {"text": "second"}, key="k")
        await until_in_thread(lambda: count(metrics, "saga_trigger_started_total") == 2)
        assert await client.temporal.get_workflow_handle(f"{saga}-second").result() == "second"
        assert len(await _ids(client, saga)) == 2


def _write(folder: Path, saga: str, text: str) -> None:
    (folder / f"{saga}.saga.yaml").write_text(textwrap.dedent(text), encoding="utf-8")


async def _ids(client: Client, saga: str) -> list[str]:
    return [run.id async for run in list_runs(client.temporal, f"WorkflowType = '{saga}'")]


def _readers(metrics: TriggerMetrics) -> list[str]:
    """The topics that the process reads."""
    samples = [sample for metric in metrics.collect() for sample in metric.samples]
    return [sample.labels["topic"] for sample in samples if sample.name == "saga_trigger_stopped"]
