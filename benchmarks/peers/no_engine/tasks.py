"""One asyncio process with a pool of connections: `python -m benchmarks.peers.no_engine.tasks URL`."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.no_engine import Payment
from benchmarks.peers.accounts import BarrierAccounts, ImpossibleEffect, calls, open_pool
from benchmarks.peers.program import serve_in_tasks


async def main(url: str) -> None:
    async with open_pool(url) as pool:
        accounts = BarrierAccounts(pool)

        async def run(id: str, payment: Payment) -> bool:
            done: list[tuple[str, str, int]] = []
            for call in calls(id, payment):
                try:
                    await accounts.take(*call)
                except ImpossibleEffect:
                    for key, account, amount in reversed(done):
                        await accounts.give_back(key, account, amount)
                    return False
                done.append(call)
            return True

        await serve_in_tasks(run)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
