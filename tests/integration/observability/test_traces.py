"""Spans of sagas on a real server: collected in memory, or sent as OTLP by a real `saga worker`."""

from __future__ import annotations

import contextlib
import gzip
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry
from temporalio.client import Client as Temporal
from temporalio.worker import Worker

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import HeaderInterceptor
from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.tracing import Tracing, TracingInterceptor
from saga_workers.worker.tracing_setup import tracing_from_environment
from saga_workers.worker.worker_process import make_worker
from sagas import Rejected, action
from sagas.settings import HttpService
from tests.helpers.local_worker import finished, make_project
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.integration.observability.shop import connect, make_shop

CHARGE = """
steps:
  - id: charge
    uses: http
    with: {connection: bank, method: POST, path: /charges, json: {account: a, amount: 3}}
    compensate:
      uses: http
      with: {connection: bank, method: POST, path: /refunds, json: {charge: "${{ steps.charge.result.id }}"}}
"""

ORDER = (
    """
saga: order
input: {type: object, required: [to]}
"""
    + CHARGE
    + """
  - id: deliver
    uses: delivery.deliver
    with: {to: "${{ input.to }}"}
    pivot: true
"""
)

DAY = "saga: day" + CHARGE

WEEK = """
saga: week
steps:
  - id: monday
    uses: saga
    with: {name: day, input: {}}
"""


@action("delivery.deliver")
async def deliver(to: str) -> dict:
    if to == "nowhere":
        raise Rejected("there is no such place")
    return {"to": to}


@pytest.fixture
def bank() -> Iterator[PaymentServer]:
    with PaymentServer() as running:
        yield running


@contextlib.asynccontextmanager
async def traced(
    temporal: TemporalServer, bank: PaymentServer, folder: Path
) -> AsyncIterator[tuple[Client, InMemorySpanExporter]]:
    """A worker that keeps no workflow in memory, so that every task replays the history, and its spans."""
    project = make_project(
        folder,
        {"order": ORDER, "day": DAY, "week": WEEK},
        [deliver],
        address=temporal.address,
        options={"bank": HttpService(name="bank", root=folder, url_setting=bank.url)},
    )
    memory = InMemorySpanExporter()
    tracing = Tracing([SimpleSpanProcessor(memory)])
    client = await Temporal.connect(temporal.address, interceptors=[HeaderInterceptor(), TracingInterceptor(tracing)])
    server = await Temporal.connect(temporal.address)
    plugin = SagaPlugin(project, tracing=tracing)
    async with make_worker(server, project, plugin=plugin, max_cached_workflows=0):
        yield Client(client, project), memory


def only_span(memory: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The only span of that name. Temporal may have a task done again, whose span comes again under its id."""
    spans = {ids(span): span for span in memory.get_finished_spans() if span.name == name}
    assert len(spans) == 1, [(span.name, *ids(span)) for span in memory.get_finished_spans()]
    return spans.popitem()[1]


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Trace and span."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_a_compensated_saga_is_one_trace(temporal: TemporalServer, bank: PaymentServer, tmp_path: Path) -> None:
    async with traced(temporal, bank, tmp_path) as (client, memory):
        run = await client.start("order", {"to": "nowhere"}, id=f"order-{uuid.uuid4()}")
        assert (await finished(client, run.id))["state"] == "COMPENSATED"
        # A question to a closed run replays its history to the end, which must not end the saga once more.
        assert await client.temporal.get_workflow_handle(run.id).query("machine")
    saga = only_span(memory, "saga order")
    assert dict(saga.attributes or {}) == {
        "saga.id": run.id,
        "saga.name": "order",
        "saga.outcome": "COMPENSATED",
        "saga.reason": "rejected",
    }
    assert parent(saga) is None
    outcomes = {}
    for name in ("do charge", "do deliver", "undo charge"):
        span = only_span(memory, name)
        assert parent(span) == ids(saga)[1]
        assert ids(span)[0] == ids(saga)[0]
        attributes = dict(span.attributes or {})
        assert attributes["saga.id"] == run.id
        assert attributes["saga.name"] == "order"
        assert f"{attributes['saga.step.op']} {attributes['saga.step.id']}" == name
        outcomes[name] = attributes["saga.outcome"]
        assert span.status.status_code is not StatusCode.ERROR  # a business no is an answer
        assert (saga.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0)
    assert outcomes == {"do charge": "done", "do deliver": "rejected", "undo charge": "done"}
    sent = {request["path"]: request["headers"].get("traceparent") for request in bank.ledger()["requests"]}
    for path, name in {"/charges": "do charge", "/refunds": "undo charge"}.items():
        trace_id, span_id = ids(only_span(memory, name))
        assert sent[path] == f"00-{trace_id:032x}-{span_id:016x}-01"


async def test_a_nested_saga_belongs_to_the_trace_of_its_root(
    temporal: TemporalServer, bank: PaymentServer, tmp_path: Path
) -> None:
    async with traced(temporal, bank, tmp_path) as (client, memory):
        with TracerProvider().get_tracer("shop").start_as_current_span("click") as click:
            run = await client.start("week", {}, id=f"week-{uuid.uuid4()}")
        assert (await finished(client, run.id))["state"] == "COMPLETED"
    week, day = only_span(memory, "saga week"), only_span(memory, "saga day")
    assert parent(week) == click.get_span_context().span_id
    assert parent(day) == ids(week)[1]
    assert parent(only_span(memory, "do charge")) == ids(day)[1]
    traces = {ids(span)[0] for span in memory.get_finished_spans()}
    assert traces == {click.get_span_context().trace_id}


async def test_metrics_and_spans_of_a_custom_worker_in_the_sandbox(
    temporal: TemporalServer, bank: PaymentServer, tmp_path: Path
) -> None:
    project = make_project(
        tmp_path,
        {"day": DAY},
        [],
        address=temporal.address,
        options={"bank": HttpService(name="bank", root=tmp_path, url_setting=bank.url)},
    )
    memory = InMemorySpanExporter()
    plugin = SagaPlugin(project, tracing=Tracing([SimpleSpanProcessor(memory)]))
    client = await Temporal.connect(temporal.address, plugins=[plugin])
    async with Worker(client, task_queue=project.settings.temporal.task_queue):
        run = await Client(client, project).start("day", {}, id=f"day-{uuid.uuid4()}")
        await run.result()
    # Given to the client, the plugin serves the worker too; nothing is seen twice.
    assert sorted(span.name for span in memory.get_finished_spans()) == ["do charge", "saga day"]
    registry = CollectorRegistry()
    registry.register(plugin.metrics)
    assert registry.get_sample_value("saga_started_total", {"saga": "day"}) == 1
    finished_as = {"saga": "day", "state": "COMPLETED", "reason": ""}
    assert registry.get_sample_value("saga_finished_total", finished_as) == 1


class Collector(ThreadingHTTPServer):
    """An OTLP collector: keeps the names of the spans it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.names: list[str] = []
        self.services: set[str] = set()


class _Receive(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        collector = self.server
        assert isinstance(collector, Collector)
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            values = {attribute.key: attribute.value.string_value for attribute in group.resource.attributes}
            collector.services.add(values["service.name"])
            collector.names += [span.name for scope in group.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The test reads what was received, not a log."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_worker_sends_its_spans_when_the_environment_says_where(
    temporal: TemporalServer, collector: Collector, tmp_path: Path
) -> None:
    project = await make_shop(tmp_path / "shop", temporal)
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    worker = WorkerProcess("worker", tmp_path / "shop", env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}).start()
    try:
        client = await connect(project, temporal)
        run = await client.start("checkout", {"sku": "apple", "limit": 100}, id=f"apple-{uuid.uuid4()}")
        await run.result()
        assert worker.stop() == 0  # what was not sent yet is sent at the end
    finally:
        worker.kill()
    assert sorted(collector.names) == ["do charge", "do reserve", "saga checkout"]
    assert collector.services == {"saga-worker"}


def test_tracing_is_not_imported_unless_configured() -> None:
    code = (
        "import sys, saga_workers.worker.plugin; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("env", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "console"}, False),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, False),
    ],
)
def test_the_variables_turn_traces_on_and_off(env: dict[str, str], on: bool) -> None:
    assert (tracing_from_environment(env) is not None) is on
