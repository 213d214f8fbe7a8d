"""The interpreter replays the recorded runs; a changed interpreter is detected."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from sagas.machine import calls
from sagas.workflow.batch_workflow import BatchWorkflow
from sagas.workflow.bulk_workflow import BulkWorkflow
from sagas.workflow.notify import NotifyWorkflow
from sagas.workflow.redelivery import RedeliveryWorkflow
from sagas.workflow.saga_workflow import SagaWorkflow
from sagas.workflow.schedule_workflow import ScheduledStart
from tests.replay.history_files import HISTORIES
from tests.replay.scenarios import SCENARIOS

RECORDED = sorted(HISTORIES.glob("*.json.gz"))
SINGLE_BATCH = sorted(HISTORIES.glob("single-batch/*.json.gz"))
"""Recorded with a flag of the SDK that is off by default, and that a later version turns on for new runs."""

SCHEDULE = {"schedule", "schedule-cancelled", "schedule-refused"}
REDELIVERY = {"redelivered", "redelivery", "redelivery-cancelled", "redelivery-exhausted", "redelivery-refused"}
BULK = {"batch", "bulk", "bulk-cancelled", "bulk-left", "bulk-rested", "bulk-retried", "bulk-wide"}


def read(path: Path) -> WorkflowHistory:
    text = gzip.decompress(path.read_bytes()).decode()
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)


def _recording(path: Path) -> str:
    return str(path.relative_to(HISTORIES)).removesuffix(".json.gz")


async def replay(path: Path) -> Exception | None:
    history = read(path)
    workflows = [SagaWorkflow, BatchWorkflow, BulkWorkflow, NotifyWorkflow, ScheduledStart, RedeliveryWorkflow]
    replayer = Replayer(workflows=workflows, workflow_runner=UnsandboxedWorkflowRunner())
    return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure


@pytest.mark.parametrize("path", [*RECORDED, *SINGLE_BATCH], ids=_recording)
async def test_a_recorded_run_is_replayed(path: Path) -> None:
    assert await replay(path) is None


def test_every_scenario_has_a_recording() -> None:
    recorded = {path.name.split(".")[0].split("+")[0] for path in RECORDED}
    assert recorded >= {scenario.name for scenario in SCENARIOS} | BULK | SCHEDULE | REDELIVERY


def test_every_way_to_cancel_has_a_recording_with_the_flag() -> None:
    cancelled = {name for name in {path.name for path in RECORDED} if "cancelled" in name}
    assert {path.name for path in SINGLE_BATCH} >= cancelled


async def test_a_changed_interpreter_fails_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = [name for name in RECORDED if name.name == "line-compensated.1.json.gz"]
    honest: Callable[..., Any] = calls.send_call

    def undo_under_another_name(run: Any, entry: Any, ask: Any, *rest: Any, **more: Any) -> None:
        honest(run, entry, ask, *rest, **more)
        if ask == "undo":
            call = run.commands.pop()
            run.emit(type(call)(**{name: getattr(call, name) for name in call.__slots__} | {"action": "other"}))

    monkeypatch.setattr(calls, "send_call", undo_under_another_name)
    assert isinstance(await replay(path), NondeterminismError)
