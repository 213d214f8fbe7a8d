"""Spans of calls that wait for a callback: as long as the wait, with its outcome, also across runs of the chain."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from temporalio.client import Client as Temporal

from saga_workers.client import Client
from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.tracing import Tracing
from saga_workers.worker.worker_process import make_worker
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.integration.observability.test_traces import ids, only_span, parent
from tests.integration.serve.accepting_bank import CHARGE, AcceptingBank, CallbackProject, call_back

WAITED = 1.5


@pytest.fixture
def bank() -> Iterator[AcceptingBank]:
    with AcceptingBank() as running:
        yield running


@contextlib.asynccontextmanager
async def traced(
    temporal: TemporalServer, bank: AcceptingBank, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Client, InMemorySpanExporter]]:
    """A worker that replays the history in every task, `saga serve`, and the spans of the worker."""
    made = CallbackProject(folder, temporal.address, bank, CHARGE, "10m")
    memory = InMemorySpanExporter()
    plugin = SagaPlugin(made.project, tracing=Tracing([SimpleSpanProcessor(memory)]))
    server = await Temporal.connect(temporal.address)
    async with make_worker(server, made.project, plugin=plugin, max_cached_workflows=0):
        client = await Client.connect(made.project)
        async with made.serving(client, monkeypatch):
            yield client, memory


@pytest.mark.parametrize(("status", "outcome"), [("booked", "done"), ("declined", "rejected")])
async def test_a_call_lasts_until_its_callback(
    temporal: TemporalServer,
    bank: AcceptingBank,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    outcome: str,
) -> None:
    bank.statuses = [503, 202]
    async with traced(temporal, bank, tmp_path / "project", monkeypatch) as (client, memory):
        run = await client.start("charge", {}, id=f"pay-{uuid.uuid4()}")
        address = await bank.address()
        await asyncio.sleep(WAITED)
        assert not [span for span in memory.get_finished_spans() if span.name == "await do charge"]
        assert (await call_back(address, {"status": status, "id": "c-1"})).status_code == 200
        story = await finished(client, run.id)
    assert story["state"] == {"done": "COMPLETED", "rejected": "COMPENSATED"}[outcome]
    saga, call = only_span(memory, "saga charge"), only_span(memory, "await do charge")
    assert dict(call.attributes or {}) == {
        "saga.id": run.id,
        "saga.name": "charge",
        "saga.step.id": "charge",
        "saga.step.op": "do",
        "saga.outcome": outcome,
    }
    assert (parent(call), ids(call)[0]) == (ids(saga)[1], ids(saga)[0])
    assert call.status.status_code is not StatusCode.ERROR
    assert (call.end_time or 0) - (call.start_time or 0) > WAITED * 1e9
    attempts = [span for span in memory.get_finished_spans() if span.name == "do charge"]
    assert {parent(span) for span in attempts} == {ids(call)[1]}
    assert {str((span.attributes or {})["saga.step.attempt"]) for span in attempts} >= {"1", "2"}
    if outcome == "done":
        assert parent(only_span(memory, "do ship")) == ids(saga)[1]


async def test_a_call_that_is_cancelled_has_failed(
    temporal: TemporalServer, bank: AcceptingBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with traced(temporal, bank, tmp_path / "project", monkeypatch) as (client, memory):
        run = await client.start("charge", {}, id=f"pay-{uuid.uuid4()}")
        address = await bank.address()
        assert (await call_back(address, {"status": "pending"})).status_code == 200, "it waits"
        await client.cancel(run.id, reason="changed my mind")
        assert (await call_back(await bank.address("/refunds"), {})).status_code == 200
        assert (await finished(client, run.id))["state"] == "COMPENSATED"
    call = only_span(memory, "await do charge")
    assert (call.attributes or {})["saga.outcome"] == "unknown"
    assert call.status.status_code is StatusCode.ERROR
    assert (only_span(memory, "await undo charge").attributes or {})["saga.outcome"] == "done"
