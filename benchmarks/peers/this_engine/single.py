"""One workflow for each saga: `python -m benchmarks.peers.this_engine.single FOLDER SAGA`."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.no_engine import Payment
from benchmarks.peers.program import serve_in_tasks
from saga_workers.client import Client, SagaFailed
from sagas.project import Project
from sagas.settings import load_settings


async def main(folder: str, saga: str) -> None:
    async with await Client.connect(Project(load_settings(Path(folder)))) as client:

        async def run(id: str, payment: Payment) -> bool:
            started = await client.start(saga, asdict(payment), id=id)
            try:
                await started.result()
            except SagaFailed as failure:
                if failure.document["state"] != "COMPENSATED":
                    raise
                return False
            return True

        await serve_in_tasks(run)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
