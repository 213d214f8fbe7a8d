"""`saga` commands in processes of their own: only those get signals of their own, or are killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path


async def start_process(folder: Path, *words: str) -> asyncio.subprocess.Process:
    """Start a command with the settings of the project in ``folder``."""
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, "-P", "-m", "saga_cli.main", *words, "--config", str(folder / "saga.toml")]
    return await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    """Wait until ``check`` holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)
