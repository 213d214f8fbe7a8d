"""Bulk workflows: `python -m benchmarks.peers.this_engine.bulk FOLDER SAGA`.

The latency of a saga is that of its bulk workflow, from its start to the end of its last saga.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from pathlib import Path

import psycopg

from benchmarks.peers.program import Jobs, PeerJob
from saga_workers.client import Client
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.settings import load_settings

SIZE = 500
"""Sagas of a bulk workflow, the default of `saga start --bulk`."""

IN_FLIGHT = 4
"""Bulk workflows at once."""


async def main(folder: str, saga: str) -> None:
    settings = load_settings(Path(folder))
    url = settings.connection("bench").url.replace("+psycopg", "")
    async with await Client.connect(Project(settings)) as client:
        starter = await client.starter(saga)
        jobs = iter(Jobs())
        while job := await asyncio.to_thread(next, jobs, None):
            gate = asyncio.Semaphore(IN_FLIGHT)
            parts = [range(start, min(start + SIZE, len(job.payments))) for start in range(0, len(job.payments), SIZE)]
            await asyncio.gather(*(run_part(starter, gate, job, numbers) for numbers in parts))
            await asyncio.to_thread(read_outcomes, url, job)


async def run_part(starter: SagaStarter, gate: asyncio.Semaphore, job: PeerJob, numbers: range) -> None:
    """Run these sagas of the job in one bulk workflow."""
    async with gate:
        begin = time.perf_counter()
        rows = [BulkRow(job.id(number), starter.make_request(asdict(job.payments[number]))) for number in numbers]
        handle = await starter.start_bulk(rows, chunk_size=SIZE)
        result = await handle.result()
        assert not result["detached"], result
        for number in numbers:
            job.latencies[number] = time.perf_counter() - begin


def read_outcomes(url: str, job: PeerJob) -> None:
    """The ledger's states of all sagas of the job."""
    with psycopg.connect(url) as connection:
        query = "select saga_id, state from saga_run where saga_id = any(%s)"
        states = dict(connection.execute(query, ([job.id(number) for number in range(len(job.payments))],)).fetchall())
    for number in range(len(job.payments)):
        state = states[job.id(number)]
        assert state in {"COMPLETED", "COMPENSATED"}, state
        job.succeeded[number] = state == "COMPLETED"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
