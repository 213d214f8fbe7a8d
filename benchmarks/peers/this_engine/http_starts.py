"""Starts over HTTP that wait for the end: `python -m benchmarks.peers.this_engine.http_starts PORT TOKEN SAGA`."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict

from benchmarks.no_engine import Payment
from benchmarks.peers.program import serve_in_callers
from benchmarks.support.http_caller import HttpCaller


async def main(port: str, token: str, saga: str) -> None:
    async def run(caller: HttpCaller, id: str, payment: Payment) -> bool:
        content = {"id": id, "input": asdict(payment), "wait": "60s"}
        status, answer = await caller.post(f"/sagas/{saga}", content)
        state = answer["outcome"]["state"]
        assert state in {"COMPLETED", "COMPENSATED"}, (status, answer)
        return state == "COMPLETED"

    await serve_in_callers(lambda: HttpCaller(int(port), f"Authorization: Bearer {token}\r\n"), run)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
