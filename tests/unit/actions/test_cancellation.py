"""Work that is shielded from the cancellation of its attempt, and work that ends although a cancellation is lost."""

from __future__ import annotations

import asyncio

import pytest

from saga_activities.concurrency import end_tasks, uncancellable


async def test_the_result_counts_despite_cancellations() -> None:
    end = asyncio.Event()

    async def work() -> str:
        await end.wait()
        return "done"

    task = asyncio.create_task(uncancellable(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    end.set()
    assert await task == "done"


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await uncancellable(work())


async def test_a_cancellation_that_counts_cancels_the_work() -> None:
    counts = False
    work = asyncio.create_task(asyncio.sleep(3600))
    task = asyncio.create_task(uncancellable(work, unless=lambda: counts))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not work.done()
    counts = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cancelled()


async def test_a_task_ends_although_it_loses_a_cancellation() -> None:
    """The task loses a cancellation as `asyncio.wait_for` does when its result arrives at the same time."""
    lost = 0

    async def repeat() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if lost == 2:
                    raise
                lost += 1

    task = asyncio.create_task(repeat())
    await asyncio.sleep(0)
    await end_tasks([task])
    assert (task.cancelled(), lost) == (True, 2)
