"""Sagas of bulk workflows are counted like any others; chunks have spans."""

from __future__ import annotations

from collections import Counter

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.tracing import Tracing
from sagas.project import Project
from tests.helpers.local_worker import running_worker
from tests.integration.bulk.conftest import Bank


async def test_sagas_and_chunks_are_counted_and_traced(bank_project: tuple[Project, str]) -> None:
    project, url = bank_project
    exporter = InMemorySpanExporter()
    plugin = SagaPlugin(project, tracing=Tracing([SimpleSpanProcessor(exporter)]))
    async with running_worker(project, plugin=plugin) as client:
        bank = Bank(client, project, url)
        bank.open_accounts(10)
        sagas = [{"id": f"w-{n}", "account": f"a{n}", "amount": 1000 if n == 3 else 10} for n in range(1, 11)]
        await bank.start("withdrawal", sagas)
        await bank.start("waiting", [{"id": "counted-1", "waits": True}, {"id": "counted-2"}])
        await client.signal("counted-1", "go")
        await client.temporal.get_workflow_handle("counted-1").result()
        await client.close()
    counts = Counter[tuple[str, ...]]()
    for metric in plugin.metrics.collect():
        for sample in metric.samples:
            label = sample.labels.get("state") or sample.labels.get("outcome") or ""
            counts[sample.name, sample.labels.get("saga", ""), label] += int(sample.value)
    assert counts["saga_started_total", "withdrawal", ""] == 10
    assert counts["saga_finished_total", "withdrawal", "COMPLETED"] == 9
    assert counts["saga_finished_total", "withdrawal", "COMPENSATED"] == 1
    assert counts["saga_step_attempts_total", "withdrawal", "done"] == 9
    assert counts["saga_step_attempts_total", "withdrawal", "rejected"] == 1
    assert counts["saga_chunk_calls_sum", "withdrawal", ""] == 10
    assert counts["saga_started_total", "waiting", ""] == 2
    assert counts["saga_finished_total", "waiting", "COMPLETED"] == 2
    chunk = next(span for span in exporter.get_finished_spans() if span.name == "do take × 10")
    assert chunk.attributes is not None
    assert chunk.attributes["saga.chunk.calls"] == 10
    assert (chunk.attributes["saga.chunk.done"], chunk.attributes["saga.chunk.rejected"]) == (9, 1)
