"""Calls the service over Restate's HTTP ingress: `python -m benchmarks.peers.restate.starts PORT`."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict

from benchmarks.no_engine import Payment
from benchmarks.peers.program import serve_in_callers
from benchmarks.support.http_caller import HttpCaller


async def main(port: str) -> None:
    async def run(caller: HttpCaller, id: str, payment: Payment) -> bool:
        content = {"id": id, "payment": asdict(payment)}
        status, answer = await caller.post("/payments/pay", content, f"Idempotency-Key: {id}\r\n")
        assert status == 200, (status, answer)
        return answer

    await serve_in_callers(lambda: HttpCaller(int(port)), run)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
