"""Names of any client make no series of metrics, and a refusal tells nothing about the worker's machine."""

from __future__ import annotations

import uuid
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.worker_metrics import SagaGauges
from tests.helpers import eager_start
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_definition_trust import refusal


def values_of(collector: Any, label: str) -> set[str]:
    return {
        sample.labels[label] for metric in collector.collect() for sample in metric.samples if label in sample.labels
    }


def sagas_of(collector: Any) -> set[str]:
    return values_of(collector, "saga")


async def test_unknown_workflow_types_share_a_series(shop: Shop) -> None:
    plugin = SagaPlugin(shop.project)
    async with running_worker(shop.project, plugin=plugin) as client:
        for _ in range(3):
            handle = await client.temporal.start_workflow(
                f"made-up-{uuid.uuid4()}",
                {},
                id=f"x-{uuid.uuid4()}",
                task_queue=shop.project.settings.temporal.task_queue,
            )
            message = await refusal(handle)
            assert str(shop.project.settings.root) not in message
        await (await client.start("own", {"text": "x"})).result()
        await until(lambda: "other" in sagas_of(plugin.metrics))
    assert sagas_of(plugin.metrics) == {*shop.project.definitions, "other"}


async def test_a_claimed_park_makes_no_series(shop: Shop) -> None:
    attributes = TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword("SagaState"), "PARKED"),
            SearchAttributePair(SearchAttributeKey.for_keyword("SagaStep"), f"step-{uuid.uuid4()}"),
        ]
    )
    async with running_worker(shop.project) as client:
        type = f"made-up-{uuid.uuid4()}"
        ids = {workflow_type: f"x-{uuid.uuid4()}" for workflow_type in (type, "own")}
        for workflow_type, id in ids.items():
            queue, input = f"nobody-{uuid.uuid4()}", eager_start.json_payload({})
            started = await eager_start.start(client.temporal, workflow_type, id, queue, input, {}, eager=True)
            await eager_start.complete_first_task(client.temporal, started, [eager_start.upsert(attributes)])
        gauges = SagaGauges(client.temporal, lambda: shop.project.definitions)

        async def counted() -> bool:
            await gauges._query_all()
            return {"other", "own"} <= sagas_of(gauges)

        await until(counted)
        assert type not in sagas_of(gauges)
        assert values_of(gauges, "step") == {"other"}, "and none of the step that its attributes name"
        for id in ids.values():
            await client.temporal.get_workflow_handle(id).terminate()
