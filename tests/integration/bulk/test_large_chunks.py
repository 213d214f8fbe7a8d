"""Chunks that are ready together, and too large for one message to Temporal, are sent one after the other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.workflow.limits import TASK_LIMIT
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import LIMIT
from tests.integration.bulk.conftest import Bank

STEPS = 4
SAGAS = 100
TEXT_BYTES = 14_000

PARALLEL = """
saga: parallel
id: "${{ input.id }}"
input: {type: object, properties: {id: {type: string}, text: {type: string}}}
steps:
"""
STEP = """
  - id: keep_%(number)d
    uses: sql
    needs: []
    with:
      connection: bank
      run: "insert into note (id, text) values (:id, :text)"
      params: {id: "${{ input.id + '-%(number)d' }}", text: "${{ input.text }}"}
    compensate: {uses: sql, with: {connection: bank, run: "delete from note where id = '-'"}}
"""


@pytest.mark.slow
async def test_one_workflow_task_sends_no_more_than_the_limit(
    bank_project: tuple[Project, str], tmp_path: Path
) -> None:
    project, url = bank_project
    text = PARALLEL + "".join(STEP % {"number": number} for number in range(STEPS))
    (tmp_path / "project" / "parallel.saga.yaml").write_text(text)
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        inputs = [{"id": f"wide-{number}", "text": "x" * TEXT_BYTES} for number in range(SAGAS)]
        starter = await client.starter("parallel")
        rows = [BulkRow(str(input["id"]), starter.make_request(input)) for input in inputs]
        handle = await starter.start_bulk(rows)
        result = await asyncio.wait_for(handle.result(), LIMIT)
        assert result["counts"] == {"COMPLETED": SAGAS}
        assert bank.query("select count(*) from note") == [(STEPS * SAGAS,)]
        sizes: dict[int, list[int]] = defaultdict(list)
        async for event in handle.fetch_history_events():
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == "saga.chunk":
                sizes[scheduled.workflow_task_completed_event_id].append(scheduled.input.ByteSize())
        await client.close()
    assert sum(map(sum, sizes.values())) > 4 * 1024 * 1024, "together they would not fit into one message"
    assert all(len(chunks) == 1 or sum(chunks) <= TASK_LIMIT for chunks in sizes.values())
