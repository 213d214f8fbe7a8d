"""One runner process as the worker sees it: started in its own group, monitored, and killed with its children."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import re
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from saga_spark.job_errors import RunnerLost
from saga_spark.runner.runner_log import RunnerLog
from saga_spark.runner.runner_protocol import LOST, decode_message, encode_message, settings_to_json
from saga_spark.settings import SparkSettings
from sagas.errors import InfrastructureError, Unavailable, UsageError
from sagas.settings.private_files import make_private_folder
from sagas.settings.python_processes import SAFE_PATH, python_command
from sagas.settings.spark import DEFAULT_WORK

MAX_MESSAGE_BYTES = 2**28
"""Maximum size of a message in bytes; a manifest of a hundred thousand files takes some 20 MB."""

KEPT_LOGS = 10
WATCHDOG_INTERVAL = 1.0
"""Seconds between two polls of the watchdog."""

_LAST_LINES_TIMEOUT = 2.0
"""Seconds that the log has to take what a runner has printed at its end."""

_numbers = itertools.count(1)


@dataclass
class PendingRequest:
    """One run that was sent to the process."""

    answer: asyncio.Future[dict[str, Any]]
    on_progress: Callable[[dict[str, Any]], None]


class RunnerProcess:
    """A process that runs Spark. ``lost_reason`` is the message why it is unusable, None while it is alive. ``company``
    are the numbers of the runs it had when it was lost.
    """

    def __init__(self, settings: SparkSettings, *, margin: int, heartbeat_timeout: int) -> None:
        self._settings = settings
        self._memory_limit = heap_bytes(settings.memory) + margin
        self._heartbeat_timeout = heartbeat_timeout
        self._pending: dict[int, PendingRequest] = {}
        self._messages_received = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._child: Process | None = None
        self._scratch: Path | None = None
        self._ready = False
        self._error: InfrastructureError | None = None
        self.company: frozenset[int] = frozenset()
        self.started_runs = 0
        self.log = Path()
        self._log: RunnerLog | None = None
        self._logging: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def lost_reason(self) -> str | None:
        return None if self._error is None else str(self._error)

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    async def start(self) -> None:
        """Start the process and begin to read its answers.

        Raises UsageError if PySpark is not installed; OSError if the process cannot be started.
        """
        if importlib.util.find_spec("pyspark") is None:
            raise UsageError(
                "Spark steps need PySpark, which is not installed", help="pip install 'saga-orchestrator[spark]'"
            )
        folder = self._settings.work_folder
        name = f"runner-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{next(_numbers)}"
        self.log, self._scratch = folder / f"{name}.log", folder / "scratch" / name
        make_private_folder(self._settings.root / DEFAULT_WORK)  # also the parent of the default stage
        make_private_folder(folder)
        make_private_folder(self._scratch)
        _delete_old_files(folder)
        self._log = log = RunnerLog(self.log)
        (answers, write_end), (output, output_end) = os.pipe(), os.pipe()
        try:
            self._child = await asyncio.create_subprocess_exec(
                *python_command("saga_spark.runner", "--answers", str(write_end)),
                stdin=PIPE,
                stdout=output_end,
                stderr=STDOUT,
                pass_fds=(write_end,),
                start_new_session=True,
                env=self._environment(self._scratch),
            )
        except BaseException:
            os.close(answers)
            os.close(output)
            raise
        finally:
            os.close(write_end)
            os.close(output_end)
        reader = await _reader_of(answers, limit=MAX_MESSAGE_BYTES)
        # Not in the context of the attempt that has started it: others also use this runner.
        self._logging = asyncio.create_task(log.copy(await _reader_of(output)), context=Context())
        self._tasks = [asyncio.create_task(self._read_messages(reader)), asyncio.create_task(self._run_watchdog())]
        await self._send({"settings": settings_to_json(self._settings)})

    async def send_run(
        self, number: int, message: Mapping[str, Any], on_progress: Callable[[dict[str, Any]], None]
    ) -> None:
        """Send a run; :meth:`wait_for_answer` waits for its end."""
        self.started_runs += 1
        assert self._log is not None
        self._log.mask_from_now_on(message["sensitive_texts"])
        self._pending[number] = PendingRequest(asyncio.get_running_loop().create_future(), on_progress)
        if not self._ready:
            on_progress({"starting": "the Spark runner"})
        await self._send({"run": number, **message})

    async def wait_for_answer(self, number: int, timeout: float | None = None) -> dict[str, Any]:
        """The run's answer. Raises RunnerLost or Unavailable if the process is lost, TimeoutError after the timeout.

        ``timeout`` is in seconds.
        """
        pending = self._pending[number]
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(pending.answer)
        finally:
            if pending.answer.done():
                self._pending.pop(number, None)

    async def cancel(self, number: int) -> None:
        await self._send({"cancel": number})

    async def kill(self, reason: str, *, memory: bool = False) -> None:
        """Kill the process and all its descendants; waiting runs fail with ``reason``."""
        self._mark_lost(reason, memory=memory)
        if self._child is not None:
            await asyncio.to_thread(kill_tree, self._child.pid)
            await self._child.wait()
        await self._release()

    async def close(self, timeout: float = 5.0) -> None:
        """Let the process exit by itself; kill it after ``timeout`` seconds."""
        assert self._child is not None
        assert self._child.stdin is not None
        self._mark_lost("the runner was closed")
        self._child.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._child.wait()
        await self.kill("the runner was closed")

    # ── internals ───────────────────────────────────────────────────────────────────────────────────────────────

    def _environment(self, scratch: Path) -> dict[str, str]:
        """The environment in which jobs and Spark's Python workers import from the settings' folders first."""
        paths = [*self._settings.python_path, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            **SAFE_PATH,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(scratch),
            "SAGA_SPARK_SCRATCH": str(scratch),
        }

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        if self._error is not None:
            raise self._error
        try:
            self._child.stdin.write(encode_message(message))
            await self._child.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise self._mark_lost(f"the Spark runner has ended; see {self.log}") from None

    async def _read_messages(self, reader: asyncio.StreamReader) -> None:
        """Read until the pipe is closed, which the end of the process causes in every case."""
        while (line := await reader.readline()).endswith(b"\n"):  # a kill may truncate the last line
            message = decode_message(line)
            self._messages_received += 1
            if "ready" in message:
                self._ready = True
                for waiting in self._pending.values():
                    waiting.on_progress({"starting": None})
            elif "lost" in message:
                self._mark_lost(f"{message['lost']}; see {self.log}", memory=message["memory"])
            elif "answer" in message:
                if message.get("error", {}).get("kind") == LOST:
                    self._note_company()  # the answers of the other runs follow
                pending = self._pending.get(message["answer"])
                if pending is not None and not pending.answer.done():
                    pending.answer.set_result(message)
            elif "progress" in message:
                pending = self._pending.get(message["progress"])
                if pending is not None:
                    pending.on_progress(message["values"])
        assert self._child is not None
        code = await self._child.wait()
        if self.lost_reason is None:
            end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._mark_lost(f"the Spark runner {end}; see {self.log}")
        await asyncio.to_thread(kill_group, self._child.pid)
        await self._release()

    async def _run_watchdog(self) -> None:
        """Kill a silent or oversized process. Silence is measured in polls of this loop, so that a period in which this
        worker itself was suspended counts as one poll."""
        assert self._child is not None
        quiet, before = 0, self._messages_received
        while self.lost_reason is None:
            await asyncio.sleep(WATCHDOG_INTERVAL)
            quiet = quiet + 1 if self._messages_received == before else 0
            before = self._messages_received
            if quiet > self._heartbeat_timeout:
                await self.kill(f"the Spark runner sent no heartbeat for {quiet} s and was killed; see {self.log}")
                return
            used = await asyncio.to_thread(resident_bytes, self._child.pid)
            if used > self._memory_limit:
                await self.kill(
                    f"the Spark runner used {used / GIB:.1f} GiB of memory, more than its limit of "
                    f"{self._memory_limit / GIB:.1f} GiB, and was killed; raise `memory` under [spark], now "
                    f"{self._settings.memory}",
                    memory=True,
                )
                return

    def _mark_lost(self, reason: str, *, memory: bool = False) -> InfrastructureError:
        if self._error is None:
            started = f"the Spark runner did not start: {reason}"
            self._error = RunnerLost(reason, memory=memory) if self._ready else Unavailable(started)
        self._note_company()
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(self._error)
                pending.answer.exception()  # mark as retrieved: a caller that timed out never awaits it
        return self._error

    def _note_company(self) -> None:
        """Record the active runs at the first sign of the end; afterwards they are answered one by one."""
        self.company = self.company or frozenset(n for n, pending in self._pending.items() if not pending.answer.done())

    async def _release(self) -> None:
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self._logging is not None:  # it ends with the last process that has the pipe
            await asyncio.wait({self._logging}, timeout=_LAST_LINES_TIMEOUT)
            self._logging.cancel()
        if self._scratch is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)


async def _reader_of(descriptor: int, *, limit: int = 2**16) -> asyncio.StreamReader:
    """Read the end of a pipe, which is closed with the reader."""
    reader = asyncio.StreamReader(limit=limit)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a process, its group, and its descendants: Spark's Python daemon has its own group."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    kill_group(pid)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def kill_group(pid: int) -> None:
    """Send SIGKILL to the group that a process leads; does nothing if the group is empty."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _delete_old_files(folder: Path) -> None:
    """Delete all but the most recent logs, and the scratch folders of workers that have ended."""
    logs = sorted(folder.glob("runner-*.log"), key=lambda path: path.stat().st_mtime)
    for old in logs[:-KEPT_LOGS]:
        old.unlink(missing_ok=True)
    for scratch in (folder / "scratch").iterdir():
        if not psutil.pid_exists(int(scratch.name.split("-")[2])):
            shutil.rmtree(scratch, ignore_errors=True)


GIB = 2**30
MEMORY_MARGIN = 2 * GIB
"""Bytes that a runner may use beyond the JVM's heap: JVM overhead, the runner's Python, Spark's Python workers."""

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def heap_bytes(text: str) -> int:
    """``1g`` or ``1500m`` in bytes. Raises UsageError, one message."""
    match = re.fullmatch(r"(\d+)\s*([kmgt])b?", text.strip().lower())
    if match is None:
        raise UsageError(f"[spark] memory: {text!r} is not an amount of memory; write it as 512m or 2g")
    return int(match[1]) * _UNITS[match[2]]


def resident_bytes(pid: int) -> int:
    """The resident memory of a process and all its descendants, in bytes."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total
