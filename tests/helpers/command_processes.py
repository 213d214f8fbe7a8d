"""`saga` commands in processes of their own while the test goes on: they get signals of their own, or are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.forked_commands import ForkedCommand


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command has ended."""

    code: int
    out: str
    err: str


class RunningCommand:
    """A command with the settings of the project in ``folder``. ``first``: as of :class:`ForkedCommand`."""

    def __init__(self, folder: Path, *words: str, first: Callable[[], None] | None = None) -> None:
        name = uuid.uuid4().hex
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        words = (*words, "--config", str(folder / "saga.toml"))
        self._process = ForkedCommand(words, folder, os.environ, self._out, first, errors=self._err)

    def interrupt(self) -> None:
        os.kill(self._process.pid, signal.SIGINT)

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)

    async def ended(self) -> Ended:
        code = await asyncio.to_thread(self._process.wait, 60)
        return Ended(code, self._out.read_text("utf-8"), self._err.read_text("utf-8"))
