"""The worker's side of the runner: one warm process, started on first use and replaced when it is lost or old."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from saga_spark.job_errors import RunnerLost
from saga_spark.runner.runner_process import MEMORY_MARGIN, RunnerProcess
from saga_spark.runner.runner_protocol import RETRY_KIND, error_from_json
from saga_spark.settings import SparkSettings
from sagas.errors import InfrastructureError, NeedsOperator, Unavailable, Unequipped
from sagas.text.masked_texts import texts_of_attempt

CANCEL_TIMEOUT = 4.0
"""Seconds that a cancelled run has to stop by itself before the whole runner is killed."""

HEARTBEAT_TIMEOUT = 60
"""Seconds without a heartbeat after which a runner counts as frozen."""

_ATTEMPT = re.compile(r"-e\d+$")

logger = logging.getLogger(__name__)


class RunnerClient:
    """Runs tasks (see ``TASKS`` in ``runner/__main__.py``), several at once, in the warm Spark session of one process.

    ``margin`` is the memory in bytes that the process may use beyond the heap of ``settings.memory``.
    """

    def __init__(
        self, settings: SparkSettings, *, margin: int = MEMORY_MARGIN, heartbeat_timeout: int = HEARTBEAT_TIMEOUT
    ) -> None:
        self._settings = settings
        self._margin = margin
        self._heartbeat_timeout = heartbeat_timeout
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._losses = RunnerLosses()
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
        """Returns the task's answer. ``tag`` labels the run's jobs in Spark; apart from ``-e`` and a number at its end
        it is the same for each attempt.

        Raises JobFailed (definite, nothing is visible), UsageError (the definition or the settings are wrong;
        Unequipped: this machine lacks something), InfrastructureError (retryable; Unavailable: does not count as an
        attempt of the job), NeedsOperator (every runner of this run was lost). When the awaiting task is cancelled, so
        are the run's jobs; this then returns once they have stopped or the runner was killed.
        """
        name = f"{task} {_ATTEMPT.sub('', tag)}"
        message = {"task": task, "request": dict(request), "tag": tag, "sensitive_texts": list(texts_of_attempt())}
        if not self._losses.needs_dedicated_runner(name):
            return await self._answered(name, message, on_progress, apart=False)
        async with self._apart:  # one at a time, because each takes the memory of a whole runner
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
                await self._retire(process)  # a defect of the process would also affect the next run
            if isinstance(error, RunnerLost):
                raise self._losses.lost(name, error, alone=process.company == {number}) from error
            self._losses.survived(name)
            if not again:
                raise error

    async def close(self) -> None:
        """Stop the processes; active runs get InfrastructureError."""
        async with self._lock:
            processes = [*self._retired, *([self._process] if self._process else [])]
            self._process = None
            self._retired.clear()
        await asyncio.gather(*(process.close() for process in processes))

    async def _current_process(self, *, apart: bool) -> RunnerProcess:
        """A process that takes a run; ``apart``: a new one that takes no other run."""
        async with self._lock:
            if apart:
                process = await self._start()
                self._retired.add(process)
                return process
            now = self._process
            if now is not None and now.lost_reason is None and now.started_runs >= self._settings.recycle_after:
                # It still has active runs, else it would be closed already. It ends with the last of them.
                self._retired.add(now)
                self._process = None
            if self._process is None or self._process.lost_reason is not None:
                if self._process is not None:
                    logger.warning("Spark runner lost, starting a new one: %s", self._process.lost_reason)
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
        """Cancel a run and wait until it ends."""
        if process.lost_reason is not None:
            return
        try:
            await process.cancel(number)
            await process.wait_for_answer(number, CANCEL_TIMEOUT)
        except TimeoutError:
            await process.kill(f"the Spark runner was killed because a cancelled job did not stop; see {process.log}")
        except Exception as error:  # noqa: BLE001 - whatever ended the run, it has ended
            logger.info("cancelled Spark run ended: %s", error)

    async def _retire(self, process: RunnerProcess) -> None:
        """Give the process no new runs; it ends with its last active run."""
        async with self._lock:
            if self._process is process:
                self._process = None
                self._retired.add(process)
        await self._close_if_done(process)

    async def _close_if_done(self, process: RunnerProcess) -> None:
        """Close a process that is idle and has reached its maximum number of runs, or has been retired."""
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


# Lost runners, and the consequences for the runs that were in them.
#
# A runner serves many runs, so its loss does not identify the cause, with one exception: a run that was alone in a
# runner that ran out of memory needs too much itself. A run that shared a lost runner with others, or lost several
# runners in a row, gets a dedicated runner: this protects the others and shows which run needs too much.
DEDICATED_RUNNER_AFTER = 3
"""Consecutive lost runners after which a run gets a dedicated one."""

MAX_CONSECUTIVE_LOSSES = 10
"""Consecutive lost runners after which an operator has to decide. (A job may crash its process on every run.)"""


class RunnerLosses:
    """The losses that one worker remembers, by names of runs that stay the same across attempts."""

    def __init__(self) -> None:
        self._consecutive: dict[str, int] = {}
        self._apart: set[str] = set()

    def needs_dedicated_runner(self, name: str) -> bool:
        """Return whether this run gets a dedicated runner."""
        return name in self._apart

    def survived(self, name: str) -> None:
        """Record that a runner has answered this run."""
        self._consecutive.pop(name, None)
        self._apart.discard(name)

    def lost(self, name: str, error: RunnerLost, *, alone: bool) -> InfrastructureError | NeedsOperator:
        """The error for the attempt of a run whose runner was lost."""
        if error.memory and alone:
            return InfrastructureError(str(error))  # the job needs too much: this counts as an attempt
        count = self._consecutive[name] = self._consecutive.get(name, 0) + 1
        if error.memory or count >= DEDICATED_RUNNER_AFTER:
            self._apart.add(name)
        if count < MAX_CONSECUTIVE_LOSSES:
            return Unavailable(str(error))
        self.survived(name)  # an operator's retry starts counting from zero
        return NeedsOperator(
            f"{count} consecutive Spark runners were lost while running this task; the last error: {error}"
        )
