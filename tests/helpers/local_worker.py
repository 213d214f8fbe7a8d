"""Runs definitions and actions of a test with a real worker in this process, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.converter import DataConverter
from temporalio.worker import PollerBehaviorSimpleMaximum

from saga_workers.client import Client
from saga_workers.temporal.data_converter import with_codec
from saga_workers.temporal.temporal_client import HeaderInterceptor
from saga_workers.worker.worker_process import make_worker
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions
from sagas.project import Project
from sagas.settings import HttpService, KafkaSettings, Settings, SqlConnection
from sagas.settings.ledger import LedgerSettings, LockSettings
from sagas.settings.temporal import TemporalSettings
from tests.helpers.waiting import LIMIT

_POLLERS = {
    "workflow_task_poller_behavior": PollerBehaviorSimpleMaximum(2),
    "activity_task_poller_behavior": PollerBehaviorSimpleMaximum(2),
}
"""Most workers of tests run one saga, and the server starts, keeps and cancels each of their polls."""

_USUAL_DURATION = 0.5
"""Seconds: a saga that is parked does not end, and is not looked at before."""


def make_project(
    folder: Path,
    definitions: Mapping[str, str],
    actions: list[Callable[..., Any]],
    *,
    address: str,
    connections: Mapping[str, str] | None = None,
    options: Mapping[str, SqlConnection | HttpService] | None = None,
    variables: Mapping[str, Any] | None = None,
    outbox: str | None = None,
    ledger: str | None = None,
    locks: str | None = None,
) -> Project:
    """A project whose files are the given texts, on a task queue of its own.

    ``outbox`` is that of `[kafka]`, ``ledger`` and ``locks`` the connections of `[ledger]` and `[locks]`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in definitions.items():
        (folder / f"{name}.saga.yaml").write_text(text, encoding="utf-8")
    all_connections: dict[str, SqlConnection | HttpService] = {
        name: SqlConnection(name=name, root=folder, url_setting=url) for name, url in (connections or {}).items()
    }
    all_connections.update(options or {})
    settings = Settings(
        root=folder,
        definition_folders=(folder,),
        temporal=TemporalSettings(address=address, namespace="default", task_queue=f"test-{uuid.uuid4()}"),
        connections=all_connections,
        vars=dict(variables or {}),
        kafka=KafkaSettings(outbox=outbox),
        ledger=LedgerSettings(connection=ledger),
        locks=LockSettings(connection=locks),
    )
    return Project(settings, Actions([getattr(action, ACTION_ATTRIBUTE) for action in actions]))


@contextlib.asynccontextmanager
async def running_worker(project: Project, **worker_options: Any) -> AsyncIterator[Client]:
    """Run a worker for the project in this process; gives a client."""
    errors = [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
    assert not errors, errors
    address = project.settings.temporal.address
    assert address is not None
    converter = with_codec(DataConverter.default, project.settings)
    temporal = await Temporal.connect(address, interceptors=[HeaderInterceptor()], data_converter=converter)
    async with make_worker(temporal, project, **{**_POLLERS, **worker_options}):
        yield Client(temporal, project)


async def finished(client: Client, saga_id: str, timeout: str = f"{LIMIT:.0f}s") -> dict[str, Any]:
    """The story when the saga is over or parked; with its steps, unless a busy worker does not tell them for long."""
    from saga_cli.wait import wait_for_end

    await _wait_for_close(client, saga_id)
    story = (await wait_for_end(client, saga_id, timeout)).to_json()
    end = time.monotonic() + LIMIT / 2
    while "cannot be queried" in (story.get("incomplete") or "") and time.monotonic() < end:
        story = await client.show(saga_id)
    return story


async def _wait_for_close(client: Client, saga_id: str) -> None:
    """Give the saga some time to end before its view is asked for: each look costs the server and the worker a task."""
    closed = asyncio.ensure_future(client.temporal.get_workflow_handle(saga_id).result())
    try:
        await asyncio.wait({closed}, timeout=_USUAL_DURATION)
    finally:
        closed.cancel()
        await asyncio.gather(closed, return_exceptions=True)  # how it ended is in the view
