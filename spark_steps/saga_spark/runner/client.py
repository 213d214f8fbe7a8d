"""The worker's side of the runner: one warm process, started on first need and replaced when it is lost or old."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from saga_spark.errors import JobFailed, RunnerLost, Unequipped
from saga_spark.runner.losses import Losses
from saga_spark.runner.memory import MARGIN
from saga_spark.runner.messages import AGAIN, error_from_json
from saga_spark.runner.process import RunnerProcess
from saga_spark.settings import SparkSettings
from sagas.errors import Infrastructure, Unavailable

__all__ = ["JobFailed", "Runner"]

CANCEL_PATIENCE = 4.0
"""Seconds a cancelled run has to stop by itself; then the whole runner is killed."""

SILENCE = 60
"""Seconds without a sign of life after which a runner counts as frozen."""

_ATTEMPT = re.compile(r"-e\d+$")

logger = logging.getLogger(__name__)


class Runner:
    """Runs tasks (see ``runner/tasks.py``), several at once, in one warm Spark session of a process of its own.

    ``margin`` are the bytes the process may use beyond the heap of ``settings.memory``.
    """

    def __init__(self, settings: SparkSettings, *, margin: int = MARGIN, silence: int = SILENCE) -> None:
        self._settings = settings
        self._margin = margin
        self._silence = silence
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
            process = await self._ready(apart=apart)
            number = next(self._numbers)
            try:
                await process.ask(number, message, on_progress)
                answer = await process.answer(number)
            except asyncio.CancelledError:
                await asyncio.shield(self._stop(process, number))
                raise
            except RunnerLost as error:
                raise self._losses.lost(name, error, alone=process.company == {number}) from error
            finally:
                await asyncio.shield(self._tidy(process))
            if "result" in answer:
                self._losses.survived(name)
                return answer["result"]
            error = error_from_json(answer["error"])
            again = answer["error"]["kind"] == AGAIN
            if again or isinstance(error, Infrastructure | Unequipped):
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

    async def _ready(self, *, apart: bool) -> RunnerProcess:
        """A process that takes a run; ``apart``: a new one that takes no other."""
        async with self._lock:
            if apart:
                process = await self._start()
                self._retired.add(process)
                return process
            now = self._process
            if now is not None and now.lost is None and now.started_runs >= self._settings.recycle_after:
                # It still has runs under way, else it would be closed already. It ends with the last of them.
                self._retired.add(now)
                self._process = None
            if self._process is None or self._process.lost is not None:
                if self._process is not None:
                    logger.warning("a new Spark runner starts: %s", self._process.lost)
                self._process = None
                self._process = await self._start()
            return self._process

    async def _start(self) -> RunnerProcess:
        process = RunnerProcess(self._settings, margin=self._margin, silence=self._silence)
        try:
            await process.start()
        except OSError as error:
            raise Unavailable(f"the Spark runner did not start: {error}") from error
        return process

    async def _stop(self, process: RunnerProcess, number: int) -> None:
        """Cancel a run and see it end."""
        if process.lost is not None:
            return
        try:
            await process.cancel(number)
            await process.answer(number, CANCEL_PATIENCE)
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
        await self._tidy(process)

    async def _tidy(self, process: RunnerProcess) -> None:
        """Close a process that is idle and has done its share, or has been retired."""
        async with self._lock:
            if process.lost is not None:
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
