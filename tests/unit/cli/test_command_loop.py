"""An answer that a thread reports after the end of a command changes nothing, and prints nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest

from saga_cli.command_loop import run_command


def test_an_answer_after_the_end_is_ignored() -> None:
    answers: list[int] = []

    async def work() -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        in_time = asyncio.Event()
        threading.Thread(target=loop.call_soon_threadsafe, args=(in_time.set,)).start()
        await in_time.wait()
        return loop

    loop = run_command(work())
    assert loop.is_closed()
    loop.call_soon_threadsafe(answers.append, 1)
    assert answers == []


def test_a_failure_of_the_command_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_command(work())
