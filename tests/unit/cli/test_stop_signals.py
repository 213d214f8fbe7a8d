"""SIGTERM and SIGHUP end a command after it has cleaned up."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from saga_cli.stop_signals import run_and_clean_up


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_command_clean_up(number: int) -> None:
    cleaned: list[str] = []
    earlier = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup

    async def command() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), number)  # as from an impatient person
            await asyncio.sleep(0)
            cleaned.append("copy")

    try:
        with pytest.raises(SystemExit) as leaving:
            run_and_clean_up(command())
    finally:
        signal.signal(number, earlier)
    assert (leaving.value.code, cleaned) == (128 + number, ["copy"])


def test_a_result_is_returned() -> None:
    async def command() -> int:
        return 8

    assert run_and_clean_up(command()) == 8
