"""Starts the saga by hand: `python -m benchmarks.peers.temporal.starts ADDRESS TASK_QUEUE remote|local`."""

from __future__ import annotations

import asyncio
import sys

from temporalio.client import Client

from benchmarks.no_engine import Payment
from benchmarks.peers.program import serve_in_tasks
from benchmarks.peers.temporal.saga import PaymentOrder, PaymentWorkflow


async def main(address: str, task_queue: str, place: str) -> None:
    client = await Client.connect(address)

    async def run(id: str, payment: Payment) -> bool:
        order = PaymentOrder(payment, place == "local")
        return await client.execute_workflow(PaymentWorkflow.run, order, id=id, task_queue=task_queue)

    await serve_in_tasks(run)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
