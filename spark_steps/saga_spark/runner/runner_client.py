"""The worker's side of the runner: one warm process, started on first need and replaced when it is lost or old."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from saga_spark.job_errors import JobFailed, RunnerLost, Unequipped
from saga_spark.runner.runner_process import MEMORY_MARGIN, RunnerProcess
from saga_spark.runner.runner_protocol import RETRY_KIND, error_from_json
from saga_spark.settings import SparkSettings
from sagas.errors import InfrastructureError, NeedsOperator, Unavailable

__all__ = ["JobFailed", "RunnerClient"]

CANCEL_TIMEOUT = 4.0
"""Seconds a cancelled run has to stop by itself; then the whole runner is killed."""

HEARTBEAT_TIMEOUT = 60
"""Seconds without a sign of life after which a runner counts as frozen."""

_ATTEMPT = re.compile(r"-e\d+$")

logger = logging.getLogger(__name__)


class RunnerClient:
    """Runs tasks (see ``runner/tasks.py``), several at once, in one warm Spark session of a process of its own.

    ``margin`` are the bytes the process may use beyond the heap of ``settings.memory``.
    """

    def __init__(
        self, settings: SparkSettings, *, margin: int = MEMORY_MARGIN, heartbeat_timeout: int = HEARTBEAT_TIMEOUT
    ) -> None:
        self._settings = settings
        self._margin = margin
        self._heartbeat_timeout = heartbeat_timeout
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._losses = Losses()
        self._apart = asyncio.Lock()
        self._process: RunnerProcess | None = None
        self._retired: set[RunnerProcess] = set()

    @property
    def process(self) -> RunnerProcess | None:
        """The process that takes the next run; None before the first one."""
        return self._process

    async def run(
        self,
        task: str,
        request: Mapping[str, Any],
        *,
        tag: str,
        on_progress: Callable[[dict[str, Any]], None] = lambda values: None,
    ) -> dict[str, Any]:
        """The task's answer. ``tag`` names the run in Spark (its jobs carry it); before ``-e`` and a number at its end
        it is the same in each attempt.

        Raises JobFailed (definite, nothing is visible), UsageError (the definition or the settings are wrong;
        Unequipped: this machine lacks something), Infrastructure (try again; Unavailable: it was no attempt of the
        job), Parked (each runner of this run is lost). When the awaiting task is cancelled, so are the run's jobs, and
        this returns when they have stopped or the runner was killed.
        """
        name = f"{task} {_ATTEMPT.sub('', tag)}"
        message = {"task": task, "request": dict(request), "tag": tag}
        if not self._losses.apart(name):
            return await self._answered(name, message, on_progress, apart=False)
        async with self._apart:  # one at a time, for each takes as much memory as a whole runner may
            return await self._answered(name, message, on_progress, apart=True)

    async def _answered(
        self, name: str, message: Mapping[str, Any], on_progress: Callable[[dict[str, Any]], None], *, apart: bool
    ) -> dict[str, Any]:
        while True:
            process = await self._current_process(apart=apart)
            number = next(self._numbers)
            try:
                await process.send_run(number, message, on_progress)
                answer = await process.wait_for_answer(number)
            except asyncio.CancelledError:
                await asyncio.shield(self._cancel_run(process, number))
                raise
            except RunnerLost as error:
                raise self._losses.lost(name, error, alone=process.company == {number}) from error
            finally:
                await asyncio.shield(self._close_if_done(process))
            if "result" in answer:
                self._losses.survived(name)
                return answer["result"]
            error = error_from_json(answer["error"])
            again = answer["error"]["kind"] == RETRY_KIND
            if again or isinstance(error, InfrastructureError | Unequipped):
                await self._retire(process)  # what ails it would meet the next run too
            if isinstance(error, RunnerLost):
                raise self._losses.lost(name, error, alone=process.company == {number}) from error
            self._losses.survived(name)
            if not again:
                raise error

    async def close(self) -> None:
        """End the processes; runs under way get Infrastructure."""
        async with self._lock:
            processes = [*self._retired, *([self._process] if self._process else [])]
            self._process = None
            self._retired.clear()
        await asyncio.gather(*(one.close() for one in processes))

    async def _current_process(self, *, apart: bool) -> RunnerProcess:
        """A process that takes a run; ``apart``: a new one that takes no other."""
        async with self._lock:
            if apart:
                process = await self._start()
                self._retired.add(process)
                return process
            now = self._process
            if now is not None and now.lost_reason is None and now.started_runs >= self._settings.recycle_after:
                # It still has runs under way, else it would be closed already. It ends with the last of them.
                self._retired.add(now)
                self._process = None
            if self._process is None or self._process.lost_reason is not None:
                if self._process is not None:
                    logger.warning("a new Spark runner starts: %s", self._process.lost_reason)
                self._process = None
                self._process = await self._start()
            return self._process

    async def _start(self) -> RunnerProcess:
        process = RunnerProcess(self._settings, margin=self._margin, heartbeat_timeout=self._heartbeat_timeout)
        try:
            await process.start()
        except OSError as error:
            raise Unavailable(f"the Spark runner did not start: {error}") from error
        return process

    async def _cancel_run(self, process: RunnerProcess, number: int) -> None:
        """Cancel a run and see it end."""
        if process.lost_reason is not None:
            return
        try:
            await process.cancel(number)
            await process.wait_for_answer(number, CANCEL_TIMEOUT)
        except TimeoutError:
            await process.kill(f"the Spark runner was killed, because a cancelled job did not stop; see {process.log}")
        except Exception as error:  # noqa: BLE001 - whatever ended the run, it has ended
            logger.info("a cancelled Spark run has ended: %s", error)

    async def _retire(self, process: RunnerProcess) -> None:
        """No new runs for this process: it ends with the last one it has."""
        async with self._lock:
            if self._process is process:
                self._process = None
                self._retired.add(process)
        await self._close_if_done(process)

    async def _close_if_done(self, process: RunnerProcess) -> None:
        """Close a process that is idle and has done its share, or has been retired."""
        async with self._lock:
            if process.lost_reason is not None:
                self._retired.discard(process)
                return
            if process.busy:
                return
            if process in self._retired:
                self._retired.discard(process)
            elif process is self._process and process.started_runs >= self._settings.recycle_after:
                self._process = None
            else:
                return
        await process.close()


# Which runs were in runners that were lost, and what follows for their attempts.
#
# A runner serves many runs, so its end says nothing about any of them, with one exception: a run that was alone in a
# runner that ran out of memory needs too much itself. A run that was there together with others, or in several lost
# runners in a row, gets a runner of its own: then the others are safe, and it is clear which one needs too much.

DEDICATED_RUNNER_AFTER = 3
"""Lost runners in a row after which a run gets one of its own."""

MAX_CONSECUTIVE_LOSSES = 10
"""Lost runners in a row after which only a person can go on. (A job may crash its process whenever it runs.)"""


class Losses:
    """What one worker remembers, by names of runs that stay the same from attempt to attempt."""

    def __init__(self) -> None:
        self._in_a_row: dict[str, int] = {}
        self._apart: set[str] = set()

    def apart(self, name: str) -> bool:
        """Does this run get a runner of its own?"""
        return name in self._apart

    def survived(self, name: str) -> None:
        """A runner has answered this run."""
        self._in_a_row.pop(name, None)
        self._apart.discard(name)

    def lost(self, name: str, error: RunnerLost, *, alone: bool) -> InfrastructureError | NeedsOperator:
        """What the attempt of a run ends with whose runner was lost."""
        if error.memory and alone:
            return InfrastructureError(str(error))  # the job needs too much: an attempt like any other
        count = self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        if error.memory or count >= DEDICATED_RUNNER_AFTER:
            self._apart.add(name)
        if count < MAX_CONSECUTIVE_LOSSES:
            return Unavailable(str(error))
        self.survived(name)  # a person's retry begins anew
        return NeedsOperator(f"{count} Spark runners in a row were lost while they ran this; the last time: {error}")
