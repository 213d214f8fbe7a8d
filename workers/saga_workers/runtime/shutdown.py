"""How a long-running process is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

log = logging.getLogger("saga")


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set from now on. Call it on the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def exit_after_grace(stop: asyncio.Event, seconds: float, reason: str) -> None:
    """Wait for ``stop``, and end the process ``seconds`` later with exit code 1, whatever its threads wait for by then.

    For a client library that blocks: nobody can end its call, and the interpreter waits for the thread it is in.
    """
    await stop.wait()

    def leave() -> None:
        log.warning("the process ends without an orderly end: %s", reason)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True  # a process that ends before is not held up
    timer.start()


async def run_tasks(named_tasks: Mapping[str, Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
    """Run all parts to their ends. When one fails the others are told to stop, and its error is raised then."""
    tasks = {asyncio.create_task(part, name=name) for name, part in named_tasks.items()}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        stop.set()
        await asyncio.gather(*tasks)
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
