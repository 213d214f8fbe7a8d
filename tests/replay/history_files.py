"""The recorded histories: files ``histories/NAME.N.json.gz``, with the flag single batch in a folder of that name."""

from __future__ import annotations

import gzip
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.service import RPCError

from saga_workers.client import Client
from tests.helpers.sdk_flags import SINGLE_BATCH
from tests.integration.engine.environment import handle

HISTORIES = Path(__file__).parent / "histories"


async def write(client: Client, id: str, name: str) -> list[Path]:
    """Write the history of a run, and of those it continued: the first is the one that has no mark."""
    try:
        last = (await handle(client, id).describe()).run_id
    except RPCError:
        return []  # this run has no such companion
    histories: list[WorkflowHistory] = []
    run: str = last
    while run:
        history = await client.temporal.get_workflow_handle(id, run_id=run).fetch_history()
        histories.insert(0, history)
        run = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return [_save(history, f"{name}+{number}" if number else name) for number, history in enumerate(histories)]


def _save(history: WorkflowHistory, name: str) -> Path:
    number = 1
    folder = HISTORIES / "single-batch" if SINGLE_BATCH in _flags(history) else HISTORIES
    while (path := folder / f"{name}.{number}.json.gz").exists():
        number += 1
    path.write_bytes(gzip.compress(history.to_json().encode(), mtime=0))
    return path


def _flags(history: WorkflowHistory) -> set[int]:
    """The flags of the SDK that the run has used."""
    tasks = (event.workflow_task_completed_event_attributes for event in history.events)
    return {flag for task in tasks for flag in task.sdk_metadata.lang_used_flags}
