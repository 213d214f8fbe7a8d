"""Ends a command on SIGTERM and SIGHUP as Ctrl-C does: what it has made outside its process is removed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from saga_cli.command_loop import run_command

T = TypeVar("T")


def run_and_clean_up(command: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. The first SIGTERM or SIGHUP cancels it, and the command exits as for the signal."""
    received: list[int] = []

    async def run() -> T:
        task = asyncio.create_task(command)
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            received.append(number)
            if len(received) == 1:  # another one would interrupt the cleaning
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, stop, number)
        return await task

    try:
        return run_command(run())
    except asyncio.CancelledError:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
