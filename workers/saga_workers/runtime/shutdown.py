"""Shutdown of a long-running process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

log = logging.getLogger("saga")

LEAVE_TIMEOUT = 10.0
"""Seconds after the grace period for closing connections, as for leaving consumer groups; then the process exits. The
Kafka client waits without limit for a broker that accepts connections and does not answer.
"""


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set from now on. Call it in the running event loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def exit_after_grace(stop: asyncio.Event, seconds: float, reason: str) -> None:
    """Wait for ``stop``, and exit the process ``seconds`` later with exit code 1, whatever its threads wait for.

    For a client library that blocks: its call cannot be cancelled, and the interpreter would wait for its thread.
    """
    await stop.wait()

    def leave() -> None:
        log.warning("exiting without a clean shutdown: %s", reason)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True  # does not delay a process that ends before
    timer.start()


async def run_tasks(named_tasks: Mapping[str, Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
    """Run all tasks until they end. If one fails, the others are stopped, and its error is raised."""
    tasks = {asyncio.create_task(part, name=name) for name, part in named_tasks.items()}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        stop.set()
        await asyncio.gather(*tasks)
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
