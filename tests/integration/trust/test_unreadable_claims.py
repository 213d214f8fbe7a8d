"""Starts that claim to be parked, and that no worker can read and so begin, hide no saga that is parked."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client as Temporal
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from saga_workers.client import Client
from saga_workers.views import oldest_runs
from saga_workers.views.parked import read_parked
from saga_workers.views.saga_list import SagaFilter, query_sagas
from saga_workers.worker import worker_metrics
from saga_workers.worker.worker_metrics import SagaGauges
from sagas import Rejected, action
from sagas.project import Project
from sagas.settings.codec import CodecSettings
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

BROKEN = """
saga: broken
steps:
  - {id: pay, uses: accepts, pivot: true}
  - {id: ship, uses: refuses}
"""
CLAIMS = 8
LIMIT = 3
PARKED = TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword("SagaState"), "PARKED")])
UNREADABLE = RawValue(
    Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"invented"}, data=bytes(40))
)


def encrypted_project(folder: Path, address: str) -> Project:
    @action("accepts")
    async def accepts() -> None: ...

    @action("refuses")
    async def refuses() -> None:
        raise Rejected("no carrier")

    project = make_project(folder, {"broken": BROKEN}, [accepts, refuses], address=address)
    codec = CodecSettings(key=secrets.token_hex(32))
    return Project(project.settings.model_copy(update={"codec": codec}), project.actions)


async def claim_parked(client: Client, queue: str, number: int) -> None:
    service = client.temporal.service_client
    stranger = Temporal(service, namespace=client.temporal.namespace)
    starts = (
        stranger.start_workflow(
            "broken", UNREADABLE, id=f"claim-{uuid.uuid4()}", task_queue=queue, search_attributes=PARKED
        )
        for _ in range(number)
    )
    await asyncio.gather(*starts)


@pytest.mark.timeout(200)
async def test_starts_that_nobody_can_read_hide_no_parked_saga(
    own_temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = encrypted_project(tmp_path, own_temporal.address)
    queue = project.settings.temporal.task_queue
    own = SagaFilter(task_queue=queue)
    async with running_worker(project) as client:
        await claim_parked(client, queue, CLAIMS)
        parked = [(await client.start("broken", {})).id for _ in range(2)]

        async def all_are_listed() -> bool:
            count = await client.temporal.count_workflows(f"TaskQueue = '{queue}' AND SagaState = 'PARKED'")
            return count.count == CLAIMS + len(parked)

        await until(all_are_listed)
        seen = await read_parked(client.locator, own, limit=LIMIT)
        assert [row.saga_id for row in seen.operations] == parked
        assert (seen.asked, seen.omitted, dict(seen.unreachable)) == (2, 0, {})
        assert seen.left_out == "without 8 runs whose start claims that they wait, and that no worker has begun"

        await claim_parked(client, queue, CLAIMS)  # a list has the newest first
        views = query_sagas(client.locator, replace(own, states=("PARKED",)), limit=LIMIT)
        assert {view.id async for view in views} == set(parked)

        monkeypatch.setattr(oldest_runs, "MOST_LISTED", 4)
        seen = await read_parked(client.locator, own, limit=1)
        assert ([row.saga_id for row in seen.operations], seen.asked) == (parked[:1], 1)
        monkeypatch.setattr(oldest_runs, "MOST_NOT_BEGUN", CLAIMS)
        monkeypatch.setattr(oldest_runs, "_CONCURRENCY", CLAIMS)
        seen = await read_parked(client.locator, own, limit=LIMIT)
        assert (seen.not_begun, seen.all_looked_at) == (CLAIMS, False)
        assert seen.left_out is not None
        assert "nothing that started later was looked at" in seen.left_out


@pytest.mark.timeout(200)
async def test_the_gauge_counts_no_start_that_nobody_can_read(
    own_temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_metrics, "_NEW_PER_REFRESH", CLAIMS + 1)
    project = encrypted_project(tmp_path, own_temporal.address)
    queue = project.settings.temporal.task_queue
    async with running_worker(project) as client:
        await claim_parked(client, queue, CLAIMS)
        await client.start("broken", {})
        gauges = SagaGauges(client.temporal, lambda: project.definitions)

        async def listed() -> float | None:
            count = await client.temporal.count_workflows("SagaState = 'PARKED'")
            if count.count <= CLAIMS:
                return None
            await gauges._query_all()
            [parked] = [metric for metric in gauges.collect() if metric.name == "saga_parked"]
            return sum(sample.value for sample in parked.samples)

        assert await until(listed) == 1
        assert await until(listed) == 1, "the claims are looked at again"
