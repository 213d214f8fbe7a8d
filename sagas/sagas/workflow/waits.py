"""Waits for conditions in workflows.

A cancel in Temporal interrupts the task of the run, and no other one. `workflow.wait_condition` does not keep to that
once the SDK applies all events of a workflow task before any code runs, which its flag
``PROCESS_WORKFLOW_ACTIVATION_JOBS_AS_SINGLE_BATCH`` turns on: each task that waited when the cancel arrived then gets
CancelledError as soon as its wait is over, although nobody has cancelled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow


async def wait_until(
    condition: Callable[[], bool], *, timeout: float | timedelta | None = None, summary: str | None = None
) -> bool:
    """Wait for a condition. Returns False if ``timeout`` (seconds) passes first; ``summary`` is that of its timer.

    Raises CancelledError only if the task that waits is cancelled: the task of the run by a cancel in Temporal, any
    other one by the code that has started it.
    """
    is_met = False

    def check() -> bool:
        nonlocal is_met
        is_met = condition()
        return is_met

    try:
        await workflow.wait_condition(check, timeout=timeout, timeout_summary=summary)
    except TimeoutError:
        return False
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
    return is_met
