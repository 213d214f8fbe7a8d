"""Runs that a client starts with a delay, or that do not answer, hide no other saga from the doctor."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from saga_workers.doctor.saga_checks import check_sagas
from saga_workers.stuck import stuck_sagas
from saga_workers.views.parked import read_parked
from saga_workers.views.saga_counts import count_sagas
from saga_workers.views.saga_list import SagaFilter, query_sagas
from sagas import Rejected, action
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

BROKEN = """
saga: broken
steps:
  - {id: pay, uses: accepts, pivot: true}
  - {id: ship, uses: refuses}
"""
DELAYED = 300
CLAIMS_PARKED = TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword("SagaState"), "PARKED")])


@pytest.mark.timeout(200)
async def test_delayed_starts_hide_no_other_saga(
    own_temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @action("accepts")
    async def accepts() -> None: ...

    @action("refuses")
    async def refuses() -> None:
        raise Rejected("no carrier")

    project = make_project(tmp_path, {"broken": BROKEN}, [accepts, refuses], address=own_temporal.address)
    queue, mark = project.settings.temporal.task_queue, uuid.uuid4().hex[:8]
    async with running_worker(project) as client:
        parked = await client.start("broken", {}, id=f"parked-{mark}")

        async def is_parked() -> bool:
            return (await client.show(parked.id))["state"] == "PARKED"

        await until(is_parked)
        delayed = [
            client.temporal.start_workflow(
                "broken",
                {},
                id=f"delayed-{mark}-{number}",
                task_queue=queue,
                start_delay=timedelta(hours=1),
                search_attributes=CLAIMS_PARKED,
            )
            for number in range(DELAYED)
        ]
        await asyncio.gather(*delayed)

        async def all_are_listed() -> bool:
            count = await client.temporal.count_workflows(f"TaskQueue = '{queue}'")
            return count.count == DELAYED + 1

        await until(all_are_listed)
        own = SagaFilter(task_queue=queue)
        parked_now = await read_parked(client.locator, own, limit=100)
        assert ([row.saga_id for row in parked_now.operations], parked_now.omitted) == ([parked.id], 0)
        listed = query_sagas(client.locator, replace(own, states=("PARKED",)), limit=100)
        assert [view.id async for view in listed] == [parked.id]
        assert (await count_sagas(client.temporal, queue)).states["PARKED"] == 1
        began, told = time.monotonic(), []
        results = await check_sagas(client.temporal, project, on_progress=told.append)
        assert time.monotonic() - began < 30
        [result] = results
        assert not result.ok
        assert result.message.startswith(f"{parked.id}: ship is parked")
        assert told[-1] == f"sagas: {DELAYED + 1} runs read"
        shown = await client.show(f"delayed-{mark}-7")
        assert "it was started with a delay, and begins at" in shown["incomplete"]

        monkeypatch.setattr(stuck_sagas, "RUN_TIMEOUT", 0.0)
        [result] = await check_sagas(client.temporal, project)
        assert result.ok is False
        assert f"and {DELAYED} more: {stuck_sagas.NOT_IN_TIME} 0 s" in result.message
