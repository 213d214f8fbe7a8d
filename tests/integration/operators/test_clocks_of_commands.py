"""A command whose clock is wrong goes by the time of the Temporal server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest
from temporalio.client import Client as Temporal

from saga_activities.concurrency import end_tasks
from saga_workers.temporal import temporal_runs
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import count_pollers, last_poll
from saga_workers.views.answering import Workers
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

DAY = 86_400.0


@pytest.fixture(params=[DAY, -DAY], ids=["ahead", "behind"])
def wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds by which the clock of this process is wrong."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + request.param)
    return request.param


@pytest_asyncio.fixture
async def client(temporal: TemporalServer) -> Temporal:
    return await Temporal.connect(temporal.address)


@pytest_asyncio.fixture
async def queue(client: Temporal) -> AsyncIterator[str]:
    """A task queue that is polled."""
    name = f"polled-{uuid.uuid4()}"
    request = PollWorkflowTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=name), identity="me")
    poll = client.workflow_service.poll_workflow_task_queue(request, timeout=timedelta(seconds=60))
    polling = asyncio.ensure_future(poll)
    await until(lambda: last_poll(client, name))
    yield name
    await end_tasks([polling])


async def test_a_worker_that_polls_is_seen(client: Temporal, queue: str, wrong_clock: float) -> None:
    assert await count_pollers(client, queue) == 1
    assert await Workers(client, None).polled(queue)


async def test_a_worker_that_has_gone_is_not_seen(
    client: Temporal, queue: str, wrong_clock: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporal_runs, "POLLER_TIMEOUT", -60.0)  # as if the poll were older than that
    assert await count_pollers(client, queue) == 0
    assert not await Workers(client, None).polled(queue)


async def test_the_time_of_the_server_is_known(client: Temporal, wrong_clock: float) -> None:
    assert abs(await ServerTime(client).likely() - (time.time() - wrong_clock)) < 60
