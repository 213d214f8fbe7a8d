"""How a long-running process is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading

log = logging.getLogger("saga")


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set from now on. Call it on the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def leave_in_time(stop: asyncio.Event, seconds: float, why: str) -> None:
    """Wait for ``stop``, and end the process ``seconds`` later with exit code 1, whatever its threads wait for by then.

    For a client library that blocks: nobody can end its call, and the interpreter waits for the thread it is in.
    """
    await stop.wait()

    def leave() -> None:
        log.warning("the process ends without an orderly end: %s", why)
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True  # a process that ends before is not held up
    timer.start()
