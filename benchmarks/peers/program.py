"""The program of a peer: it reads jobs as lines of JSON, runs their sagas, and answers each with one line.

``ready`` is its first line. It needs nothing but psycopg, since peers have environments of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TextIO, TypeVar

from benchmarks.no_engine import Payment

Caller = TypeVar("Caller")
RunSaga = Callable[[str, Payment], bool]
"""Runs the saga with this id for this payment; False if it ended with its compensations."""

RunSagaAsync = Callable[[str, Payment], Awaitable[bool]]


@dataclass
class PeerJob:
    """Sagas to run, at most ``concurrency`` at once. ``succeeded`` and ``latencies`` (seconds) belong to the sagas."""

    run: str
    concurrency: int
    payments: list[Payment]
    latencies: list[float] = field(init=False)
    succeeded: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.latencies, self.succeeded = [0.0] * len(self.payments), [False] * len(self.payments)

    def id(self, number: int) -> str:
        return f"{self.run}-{number}"


class Jobs:
    """The jobs of this process. What else it prints goes to standard error."""

    def __init__(self) -> None:
        self._answers: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._write("ready")

    def __iter__(self) -> Iterator[PeerJob]:
        """Each job is answered when the next one is asked for."""
        for line in sys.stdin:
            told = json.loads(line)
            job = PeerJob(told["run"], told["concurrency"], [Payment(*payment) for payment in told["payments"]])
            begin = time.perf_counter()
            yield job
            seconds = time.perf_counter() - begin
            self._write(json.dumps({"seconds": seconds, "latencies": job.latencies, "succeeded": job.succeeded}))

    def _write(self, line: str) -> None:
        print(line, file=self._answers, flush=True)


def serve_in_threads(run_saga: RunSaga, most: int) -> None:
    """Run the sagas of each job in threads, ``most`` at most, which stay for the next job."""
    with ThreadPoolExecutor(most) as pool:
        for job in Jobs():
            todo = iter(range(len(job.payments)))

            def work(job: PeerJob = job, todo: Iterator[int] = todo) -> None:
                for number in todo:
                    begin = time.perf_counter()
                    job.succeeded[number] = run_saga(job.id(number), job.payments[number])
                    job.latencies[number] = time.perf_counter() - begin

            for thread in [pool.submit(work) for _ in range(min(most, job.concurrency))]:
                thread.result()


async def serve_in_tasks(run_saga: RunSagaAsync) -> None:
    """Run the sagas of each job in tasks."""
    await serve_in_callers(lambda: None, lambda _, id, payment: run_saga(id, payment))


async def serve_in_callers(
    open_caller: Callable[[], Caller], run_saga: Callable[[Caller, str, Payment], Awaitable[bool]]
) -> None:
    """Run the sagas of each job in tasks that have a caller each, a connection for instance."""
    callers: list[Caller] = []
    jobs = iter(Jobs())
    while job := await asyncio.to_thread(next, jobs, None):
        callers += [open_caller() for _ in range(job.concurrency - len(callers))]
        todo = iter(range(len(job.payments)))

        async def work(caller: Caller, job: PeerJob = job, todo: Iterator[int] = todo) -> None:
            for number in todo:
                begin = time.perf_counter()
                job.succeeded[number] = await run_saga(caller, job.id(number), job.payments[number])
                job.latencies[number] = time.perf_counter() - begin

        await asyncio.gather(*(work(caller) for caller in callers[: job.concurrency]))
