"""Submits sagas to DTM and waits for their ends: `python -m benchmarks.peers.dtm.starts PORT PARTICIPANT_PORT`."""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.no_engine import Payment
from benchmarks.peers.accounts import calls
from benchmarks.peers.program import serve_in_callers
from benchmarks.support.http_caller import HttpCaller


async def main(port: str, participant: str) -> None:
    base = f"http://127.0.0.1:{participant}"
    step = {"action": f"{base}/do", "compensate": f"{base}/undo"}

    async def run(caller: HttpCaller, id: str, payment: Payment) -> bool:
        todo = calls(id, payment)
        content = {
            "gid": id,
            "trans_type": "saga",
            "wait_result": True,
            "steps": [step] * len(todo),
            "payloads": [json.dumps({"account": account, "amount": amount}) for _, account, amount in todo],
        }
        status, answer = await caller.post("/api/dtmsvr/submit", content)
        assert status in {200, 409}, (status, answer)
        return status == 200

    await serve_in_callers(lambda: HttpCaller(int(port)), run)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
