"""The CPU that the workflow tasks of a worker in this process take."""

from __future__ import annotations

import time
from typing import Any

import pytest
from temporalio.worker import _workflow_instance

from tests.helpers.quiet_cpu import quiet_seconds


@pytest.fixture
def task_seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of CPU of each workflow task, divided by how slow the machine is."""
    taken: list[float] = []
    activate = _workflow_instance._WorkflowInstanceImpl.activate

    def measured(self: Any, activation: Any) -> Any:
        began = time.thread_time()
        completed = activate(self, activation)
        seconds = time.thread_time() - began
        taken.append(seconds if seconds < 0.5 else quiet_seconds(seconds))
        return completed

    monkeypatch.setattr(_workflow_instance._WorkflowInstanceImpl, "activate", measured)
    return taken
