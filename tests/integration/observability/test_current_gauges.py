"""The gauges of a worker follow the definitions of its project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.runtime import current_definitions
from saga_workers.temporal.temporal_client import connect
from saga_workers.worker import poller_gauges, prepared_gauges, scraped_metrics
from saga_workers.worker.plugin import SagaPlugin
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer

FIRST = "saga: first\nsteps: [{id: a, uses: pass}]\n"
SECOND = """
saga: second
steps:
  - {id: a, uses: far.book, task_queue: far, effect: none}
  - id: b
    uses: sql
    with: {connection: shop, run: "update stock set free = 1 where sku = 'a'", two_phase: true}
  - {id: c, uses: pass, pivot: true}
"""


async def test_a_definition_that_is_added_has_its_gauges(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_definitions, "_INTERVAL", 0.0)
    for module in (poller_gauges, prepared_gauges):
        monkeypatch.setattr(module, "GAUGE_MAX_AGE", 0.0)
    url = json.dumps(new_database(postgres_server))
    settings = f'definitions = ["."]\n[temporal]\naddress = "{temporal.address}"\n[connections.shop]\nurl = {url}\n'
    (tmp_path / "saga.toml").write_text(settings)
    (tmp_path / "first.saga.yaml").write_text(FIRST)
    project = Project(load_settings(tmp_path))
    client = await connect(project.settings)
    async with scraped_metrics.scraped_metrics(client, project, SagaPlugin(project), EnqueuedMetrics({})) as metrics:
        before = await _labels(metrics)
        (tmp_path / "second.saga.yaml").write_text(SECOND)
        added = await _labels(metrics) - before
    assert {("saga_pollers", "far"), ("saga_prepared_old", "shop"), ("saga_started_total", "second")} <= added


async def _labels(metrics: scraped_metrics.ScrapedMetrics) -> set[tuple[str, str]]:
    """The names of all samples with the value of one of their labels."""
    await metrics.refresh()
    samples = [sample for each in metrics.collectors for metric in each.collect() for sample in metric.samples]
    return {(sample.name, value) for sample in samples for value in sample.labels.values()}
