"""The metrics of a real `saga worker`, as Prometheus would scrape them."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from saga_workers.client import Client
from saga_workers.devstack.service import http_get
from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.relay.relay_metrics import RelayMetrics
from saga_workers.relay.relay_status import OutboxGauges
from saga_workers.serve.api import requests_counter
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from saga_workers.worker.failing_task_gauges import FailingTaskGauges
from saga_workers.worker.lock_gauges import LockGauges
from saga_workers.worker.open_effects import OpenEffects
from saga_workers.worker.poller_gauges import PollerGauges
from saga_workers.worker.prepared_gauges import PreparedGauges
from saga_workers.worker.reader_gauges import ReaderGauges
from saga_workers.worker.worker_metrics import SagaGauges, WorkerMetrics
from sagas.project import Project
from sagas.settings import Settings
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import until
from tests.integration.observability.shop import connect, make_shop

ROOT = Path(__file__).parents[3]


Sample = tuple[str, frozenset[tuple[str, str]]]
"""The name of a metric, and its labels with their values."""


@dataclass
class Shop:
    client: Client
    worker: WorkerProcess
    project: Project

    def scrape(self) -> dict[Sample, float]:
        """Every sample by its name and labels."""
        status, text = http_get(self.worker.health_port, "/metrics")
        assert status == 200, text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }

    async def run(self, sku: str, limit: int) -> dict:
        run = await self.client.start("checkout", {"sku": sku, "limit": limit}, id=f"{sku}-{uuid.uuid4()}")
        return await finished(self.client, run.id)


def sample(name: str, **labels: str) -> Sample:
    return name, frozenset(labels.items())


@pytest.fixture
async def shop(temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[Shop]:
    project = await make_shop(tmp_path / "shop", temporal)
    worker = WorkerProcess("worker", tmp_path / "shop").start()
    try:
        yield Shop(await connect(project, temporal), worker, project)
    finally:
        worker.kill()


async def test_metrics_count_completed_compensated_and_parked_sagas(shop: Shop) -> None:
    before = time.time()
    assert (await shop.run("apple", 100))["state"] == "COMPLETED"
    assert (await shop.run("pear", 1))["state"] == "COMPENSATED"
    assert (await shop.run("glued", 1))["state"] == "PARKED"
    saga = {"saga": "checkout"}
    # The parked one is overdue after a second, visibility lags behind, and the gauges are as old as the worker allows.
    metrics = await until(
        lambda: with_gauges(shop, sample("saga_overdue", **saga), sample("saga_parked", **saga, step="reserve"))
    )
    assert metrics[sample("saga_started_total", **saga)] == 3
    assert metrics[sample("saga_finished_total", **saga, state="COMPLETED", reason="")] == 1
    assert metrics[sample("saga_finished_total", **saga, state="COMPENSATED", reason="rejected")] == 1
    assert sum(value for (name, _), value in metrics.items() if name == "saga_finished_total") == 2
    assert metrics[sample("saga_duration_seconds_count", **saga, state="COMPLETED")] == 1
    assert 0 < metrics[sample("saga_duration_seconds_sum", **saga, state="COMPLETED")] < 60

    attempts = "saga_step_attempts_total"
    assert metrics[sample(attempts, **saga, step="reserve", op="do", outcome="done")] == 3
    assert metrics[sample(attempts, **saga, step="charge", op="do", outcome="done")] == 1
    assert metrics[sample(attempts, **saga, step="charge", op="do", outcome="rejected")] == 2
    assert metrics[sample(attempts, **saga, step="reserve", op="undo", outcome="done")] == 1
    assert metrics[sample(attempts, **saga, step="reserve", op="undo", outcome="rejected")] == 1
    assert metrics[sample("saga_step_duration_seconds_count", **saga, step="reserve", op="undo")] == 2
    assert metrics[sample("saga_guard_late_total")] == 0

    # Temporal is asked about the whole namespace, which other tests use too: at least ours is there.
    assert metrics[sample("saga_parked", **saga, step="reserve")] >= 1
    assert metrics[sample("saga_parked_oldest_seconds", **saga)] > 0
    assert metrics[sample("saga_overdue", **saga)] >= 1
    assert metrics[sample("saga_parked_oldest_seconds", **saga)] < time.time() - before + 3600


def with_gauges(shop: Shop, *names: Sample) -> dict[Sample, float] | None:
    """The metrics of the worker; None as long as one of these is missing or 0."""
    metrics = shop.scrape()
    return metrics if all(metrics.get(name) for name in names) else None


async def test_a_replayed_history_is_not_counted_again(shop: Shop) -> None:
    story = await shop.run("glued", 1)
    assert shop.scrape()[sample("saga_started_total", saga="checkout")] == 1

    # A question to a closed run makes another worker replay its history from the beginning to the end.
    decision = {"step": "reserve", "decision": "skip", "reason": "written off", "who": "test"}
    await shop.client.resolve(story["id"], decision)
    assert (await finished(shop.client, story["id"]))["state"] == "RESIDUE"
    shop.worker.kill()
    shop.worker.start()
    assert await shop.client.temporal.get_workflow_handle(story["id"]).query("machine")
    counted = {name: value for (name, _), value in shop.scrape().items() if value}
    assert not {"saga_started_total", "saga_finished_total"} & counted.keys()


@pytest.mark.slow
async def test_a_run_taken_over_is_counted_once(shop: Shop) -> None:
    story = await shop.run("glued", 1)
    shop.worker.kill()
    shop.worker.start()  # it replays the history and continues with the operator's decision
    decision = {"step": "reserve", "decision": "skip", "reason": "written off", "who": "test"}
    await shop.client.resolve(story["id"], decision)
    assert (await finished(shop.client, story["id"]))["state"] == "RESIDUE"
    metrics = shop.scrape()
    assert metrics[sample("saga_started_total", saga="checkout")] == 0
    assert metrics[sample("saga_finished_total", saga="checkout", state="RESIDUE", reason="rejected")] == 1


async def test_parked_since_is_when_it_parked(shop: Shop) -> None:
    story = await shop.run("glued", 1)
    standing = SagaGauges(shop.client.temporal, lambda: shop.project.definitions)
    run_id = (await shop.client.temporal.get_workflow_handle(story["id"]).describe()).run_id

    async def parked_since() -> float | None:
        await standing._query()
        return standing._parked_since.get(run_id)

    output = datetime.fromisoformat(story["parked"][0]["since"]).timestamp()
    assert abs(await until(parked_since) - output) < 1.0


def test_the_page_lists_exactly_the_existing_metrics() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(saga_[a-z_]+)", page, flags=re.MULTILINE))
    nothing: Any = None  # what is not refreshed reads nothing
    standing, open_effects = SagaGauges(nothing, dict), OpenEffects(nothing, Settings())
    gauges = (standing, open_effects, LockGauges("shop", nothing), PollerGauges(nothing, dict, "sagas"))
    gauges = (*gauges, FailingTaskGauges(nothing, dict), PreparedGauges(dict))
    gauges = (*gauges, ReaderGauges(Project(Settings()), nothing))
    counted = {_exposed(metric.name, metric.type) for metric in WorkerMetrics().collect()}
    asked = {metric.name for metric in (metric for gauge in gauges for metric in gauge.collect())}
    triggered = {_exposed(metric.name, metric.type) for metric in TriggerMetrics().collect()}
    serving = {_exposed(metric.name, metric.type) for metric in requests_counter(CollectorRegistry()).collect()}
    relay = [*RelayMetrics().collect(), *OutboxGauges([]).collect()]
    relayed = {_exposed(metric.name, metric.type) for metric in relay}
    enqueued = {_exposed(metric.name, metric.type) for metric in EnqueuedMetrics({}).collect()}
    assert named == counted | asked | triggered | serving | relayed | enqueued


def _exposed(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name
