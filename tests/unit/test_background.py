"""Background tasks of a process begin again after an error, which others may have caused."""

from __future__ import annotations

import asyncio
import logging

import pytest

from saga_workers.runtime import background
from saga_workers.runtime.background import start_background


async def test_work_that_an_error_has_ended_begins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "RESTART_DELAY", 0.0)
    rounds: list[int] = []

    async def look() -> None:
        rounds.append(len(rounds))
        if len(rounds) < 3:
            raise KeyError("of a client")

    with caplog.at_level(logging.ERROR, "saga"):
        await asyncio.wait_for(start_background(look, "the search"), 5)
    assert rounds == [0, 1, 2]
    assert caplog.text.count("the search was ended by an internal error") == 2


async def test_a_cancelled_task_ends() -> None:
    task = start_background(lambda: asyncio.sleep(60), "the search")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
