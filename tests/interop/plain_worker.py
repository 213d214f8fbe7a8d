"""A participant that knows Temporal and nothing of this project: any language could do the same.

``python plain_worker.py ADDRESS [--namespace default] [--task-queue loyalty]`` serves the activity types
``loyalty.add`` (customer, points) and ``loyalty.remove`` (customer) until it gets SIGTERM. One JSON argument each:
these and ``"_saga": {key, forward_key, saga_id, step, op, generation}``. It keeps the points of each customer and
honours the key: answers and refusals are remembered under it, and a key whose undo it has seen is refused. Every
request is printed as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

LIMIT = 1000


class Loyalty:
    """The accounts, and what was answered under which key."""

    def __init__(self) -> None:
        self.points: dict[str, int] = {}
        self.added: dict[str, int] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, str] = {}
        self.undone: set[str] = set()

    @activity.defn(name="loyalty.add")
    async def add(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Add points. More than the limit at once is a definite no."""
        key = argument["_saga"]["key"]
        print(json.dumps({"activity": "loyalty.add", "argument": argument}), flush=True)
        if key in self.undone:
            raise ApplicationError("these points were taken back", type="AlreadyCompensated", non_retryable=True)
        if argument["points"] > LIMIT:
            self.refusals[key] = f"more than {LIMIT} points at once"
        if key in self.refusals:
            detail = {"attempt": activity.info().attempt}  # the first attempt is a definite no
            raise ApplicationError(self.refusals[key], detail, type="Rejected", non_retryable=True)
        if key not in self.answers:
            customer = argument["customer"]
            self.points[customer] = self.points.get(customer, 0) + argument["points"]
            self.added[key] = argument["points"]
            self.answers[key] = {"customer": customer, "balance": self.points[customer]}
        return self.answers[key]

    @activity.defn(name="loyalty.remove")
    async def remove(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Take back what was added under the key that this undo belongs to; it may never have been added."""
        key = argument["_saga"]["key"]
        print(json.dumps({"activity": "loyalty.remove", "argument": argument}), flush=True)
        forward = argument["_saga"]["forward_key"]
        self.undone.add(forward)
        if key not in self.answers:
            customer = argument["customer"]
            self.points[customer] = self.points.get(customer, 0) - self.added.pop(forward, 0)
            self.answers[key] = {"customer": customer, "balance": self.points[customer]}
        return self.answers[key]


async def serve(address: str, namespace: str, task_queue: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    loyalty = Loyalty()
    activities: list[Callable[..., Awaitable[Any]]] = [loyalty.add, loyalty.remove]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    client = await Client.connect(address, namespace=namespace)
    async with Worker(client, task_queue=task_queue, activities=activities):
        print(json.dumps({"ready": True}), flush=True)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--task-queue", default="loyalty")
    options = parser.parse_args()
    asyncio.run(serve(options.address, options.namespace, options.task_queue))
