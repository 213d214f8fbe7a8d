"""The saga by hand, with its failures: `python -m benchmarks.peers.temporal.saga ADDRESS TASK_QUEUE URL`.

A worker as that of `benchmarks.support.handwritten`, which has no failures. The compensation of a step is registered
before the step, since its answer may be lost, and the undo gives nothing back for a step that never was.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    from benchmarks.no_engine import Payment
    from benchmarks.peers.accounts import BarrierAccounts, ImpossibleEffect, calls, open_pool

Call = Sequence[str | int]
"""Key, account and amount."""


@dataclass
class PaymentOrder:
    """``is_local``: its steps are local activities."""

    payment: Payment
    is_local: bool


@workflow.defn(name="peer-payment")
class PaymentWorkflow:
    """Forward in order; on a failure the compensations of what was begun, last first."""

    @workflow.run
    async def run(self, order: PaymentOrder) -> bool:
        execute = workflow.execute_local_activity if order.is_local else workflow.execute_activity
        policy, limit = RetryPolicy(maximum_attempts=12), timedelta(seconds=5)
        begun: list[Call] = []
        try:
            for call in calls(workflow.info().workflow_id, order.payment):
                begun.append(call)
                await execute("peer-take", call, start_to_close_timeout=limit, retry_policy=policy)
        except FailureError:  # of a remote activity inside an ActivityError, of a local one bare
            for call in reversed(begun):
                await execute("peer-give-back", call, start_to_close_timeout=limit, retry_policy=RetryPolicy())
            return False
        return True


class PaymentActivities:
    def __init__(self, accounts: BarrierAccounts) -> None:
        self._accounts = accounts

    @activity.defn(name="peer-take")
    async def take(self, call: tuple[str, str, int]) -> None:
        try:
            await self._accounts.take(*call)
        except ImpossibleEffect as error:
            raise ApplicationError(str(error), non_retryable=True) from error

    @activity.defn(name="peer-give-back")
    async def give_back(self, call: tuple[str, str, int]) -> None:
        await self._accounts.give_back(*call)


async def main(address: str, task_queue: str, url: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    client = await Client.connect(address)
    async with open_pool(url) as pool:
        activities = PaymentActivities(BarrierAccounts(pool))
        worker = Worker(
            client,
            task_queue=task_queue,
            workflows=[PaymentWorkflow],
            activities=[activities.take, activities.give_back],
            workflow_runner=UnsandboxedWorkflowRunner(),
            workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(10),
            activity_task_poller_behavior=PollerBehaviorSimpleMaximum(10),
        )
        async with worker:
            print("ready", flush=True)
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
