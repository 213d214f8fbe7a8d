"""The yardstick: one three-step saga as an engineer would write it by hand on Temporal.

The guarded variant keeps a barrier row in the same transaction as the effect, in one statement more than the effect.
Run as a worker: ``python -m benchmarks.support.handwritten ADDRESS TASK_QUEUE DATABASE_URL``.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    from psycopg_pool import AsyncConnectionPool

STEPS = ("first", "second", "third")


@dataclass
class HandwrittenInput:
    """The input: who, how much, how many steps, which kind of activity."""

    account: str
    amount: int
    steps: int
    kind: str


@dataclass
class ParticipantCall:
    """One call of a participant; ``key`` is its idempotency key."""

    key: str
    account: str
    amount: int


@workflow.defn(name="handwritten")
class Handwritten:
    """Forward in order; on a failure the compensations of what was begun, last first."""

    @workflow.run
    async def run(self, order: HandwrittenInput) -> int:
        begun: list[ParticipantCall] = []
        action, undo = ("noop", "noop") if order.kind == "noop" else ("debit", "credit")
        execute = workflow.execute_local_activity if order.kind == "local" else workflow.execute_activity
        policy = RetryPolicy(maximum_attempts=12)
        total = 0
        try:
            for number in range(order.steps):
                request = ParticipantCall(f"{workflow.info().workflow_id}/{number}", order.account, order.amount)
                begun.append(request)
                total += await execute(
                    action,
                    request,
                    result_type=int,
                    activity_id=f"step{number}",
                    start_to_close_timeout=timedelta(seconds=5),
                    retry_policy=policy,
                )
        except FailureError:  # of a remote activity inside an ActivityError, of a local one bare
            for request in reversed(begun):
                await execute(
                    undo, request, result_type=int, start_to_close_timeout=timedelta(seconds=5), retry_policy=policy
                )
            raise ApplicationError("undone", non_retryable=True) from None
        return total


@workflow.defn(name="handwritten-fused")
class HandwrittenFused:
    """The three guarded steps in one activity, each in a transaction of its own; nothing is compensated."""

    @workflow.run
    async def run(self, order: HandwrittenInput) -> int:
        requests = [
            ParticipantCall(f"{workflow.info().workflow_id}/{number}", order.account, order.amount)
            for number in range(order.steps)
        ]
        execute = workflow.execute_local_activity if order.kind == "local" else workflow.execute_activity
        return await execute(
            "debit_all",
            requests,
            result_type=int,
            start_to_close_timeout=timedelta(seconds=15),
            retry_policy=RetryPolicy(maximum_attempts=12),
        )


class HandwrittenParticipants:
    """The activities; the pool is opened once per worker."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool

    @activity.defn
    async def noop(self, request: ParticipantCall) -> int:
        return request.amount

    @activity.defn
    async def debit(self, request: ParticipantCall) -> int:
        return await self._guarded(request, "do", -request.amount)

    @activity.defn
    async def debit_all(self, requests: list[ParticipantCall]) -> int:
        return sum([await self.debit(request) for request in requests])

    @activity.defn
    async def credit(self, request: ParticipantCall) -> int:
        return await self._guarded(request, "undo", request.amount)

    async def _guarded(self, request: ParticipantCall, op: str, amount: int) -> int:
        async with self._pool.connection() as connection, connection.transaction():
            inserted = await connection.execute(
                "insert into hand_barrier (key, op, result) values (%s, %s, %s) on conflict do nothing",
                (request.key, op, json.dumps(request.amount)),
            )
            if inserted.rowcount == 0:
                return request.amount
            await connection.execute(
                "update account set balance = balance + %s where id = %s", (amount, request.account)
            )
            return request.amount


async def main(address: str, task_queue: str, url: str) -> None:
    client = await Client.connect(address)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(url, min_size=1, max_size=20, open=False)
    async with pool:
        participants = HandwrittenParticipants(pool)
        worker = Worker(
            client,
            task_queue=task_queue,
            workflows=[Handwritten, HandwrittenFused],
            activities=[participants.noop, participants.debit, participants.debit_all, participants.credit],
            workflow_runner=UnsandboxedWorkflowRunner(),
            workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(10),
            activity_task_poller_behavior=PollerBehaviorSimpleMaximum(10),
        )
        async with worker:
            print("ready", flush=True)
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
