"""Spans of requests over Kafka: as long as the wait for the reply, with its outcome, whatever their attempts were."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.tracing import Tracing
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.messaging.request.request_environment import open_environment
from tests.integration.messaging.request.test_requests import ORDER, SHORT_TIMEOUT
from tests.integration.observability.test_traces import ids, only_span, parent


@pytest.mark.parametrize(
    ("saga", "do", "outcome", "attempts"),
    [("order", "done", "done", 1), ("order", "reject", "rejected", 1), ("short-timeout", "silent", "unknown", 2)],
)
async def test_a_request_lasts_until_its_reply(
    temporal: TemporalServer,
    kafka: Broker,
    postgres_server: DatabaseServer,
    tmp_path: Path,
    saga: str,
    do: str,
    outcome: str,
    attempts: int,
) -> None:
    memory = InMemorySpanExporter()
    folder = tmp_path / "project"
    async with open_environment(folder, temporal, kafka, postgres_server, ORDER, SHORT_TIMEOUT, serving=False) as env:
        plugin = SagaPlugin(env.project, tracing=Tracing([SimpleSpanProcessor(memory)]))
        async with running_worker(env.project, plugin=plugin):
            story = await env.run_saga(saga, do=do)
    whole, call = only_span(memory, f"saga {saga}"), only_span(memory, "await do reserve")
    assert (call.attributes or {})["saga.outcome"] == outcome, story
    assert (parent(call), ids(call)[0]) == (ids(whole)[1], ids(whole)[0])
    assert (call.status.status_code is StatusCode.ERROR) is (outcome == "unknown")
    sent = {ids(span): span for span in memory.get_finished_spans() if span.name == "do reserve"}.values()
    assert [(span.attributes or {})["saga.outcome"] for span in sent] == ["waits"] * attempts
    for span in sent:
        assert parent(span) == ids(call)[1]
        assert (call.start_time or 0) <= (span.start_time or 0) <= (call.end_time or 0)
    if outcome == "unknown":
        assert (call.end_time or 0) - (call.start_time or 0) > 6e9, "two attempts of 3 s"
