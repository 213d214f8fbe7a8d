"""The tasks of a run."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from sagas.workflow.task_set import TaskSet


async def work() -> None:
    await asyncio.sleep(60)


async def test_work_that_is_cancelled_before_it_begins_leaves_no_warning() -> None:
    """A timer is replaced in the workflow task that has started it."""
    tasks = TaskSet()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tasks.start("timer", work())
        tasks.cancel("timer")
        await asyncio.sleep(0.01)
        gc.collect()
    assert [str(warning.message) for warning in caught if "never awaited" in str(warning.message)] == []


async def test_the_crash_of_a_task_is_kept() -> None:
    async def crash() -> None:
        raise ValueError("a bug")

    tasks = TaskSet()
    tasks.start("work", crash())
    await asyncio.sleep(0.01)
    with pytest.raises(ValueError, match="a bug"):
        await tasks.wait(lambda: True, lambda: None)
