"""Attempts of a worker that knows nothing of this project, as the engine reads and shows them."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, run_saga


@activity.defn(name="echo")
async def echo(argument: dict[str, Any]) -> dict[str, Any]:
    return argument


@activity.defn(name="fail")
async def fail(argument: dict[str, Any]) -> None:
    raise ApplicationError("no connection")


@activity.defn(name="refuse")
async def refuse(argument: dict[str, Any]) -> None:
    detail = {"attempt": activity.info().attempt, "code": "sold-out", "seats": []}
    raise ApplicationError("sold out", detail, type="Rejected", non_retryable=True)


def abroad(queue: str, uses: str) -> str:
    return f"""
        saga: abroad
        steps:
          - id: ask
            uses: {uses}
            task_queue: {queue}
            with: {{seats: [], voucher: null}}
            effect: none
            retry: {{initial_interval: 100ms}}
        output: {{seats: "${{{{ steps.ask.result.seats }}}}", voucher: "${{{{ steps.ask.result.voucher }}}}"}}
    """


async def test_a_worker_may_return_its_argument(env: Environment) -> None:
    queue = f"abroad-{uuid.uuid4()}"
    async with (
        env.serving(abroad(queue, "echo")) as client,
        Worker(client.temporal, task_queue=queue, activities=[echo]),
    ):
        story = await run_saga(client, "abroad")
    assert (story["state"], story["output"]) == ("COMPLETED", {"seats": [], "voucher": None})


async def test_details_in_the_same_object_as_the_attempt_are_kept(env: Environment) -> None:
    queue = f"abroad-{uuid.uuid4()}"
    async with (
        env.serving(abroad(queue, "refuse")) as client,
        Worker(client.temporal, task_queue=queue, activities=[refuse]),
    ):
        story = await run_saga(client, "abroad")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert story["reason"]["details"] == {"code": "sold-out", "seats": []}
    assert story["steps"][0]["attempts"] == 1


class Clinic:
    """A worker that refuses to book, and counts the calls. ``failures``: attempts that fail before it answers."""

    def __init__(self, *, failures: int = 0, final: bool = True, rejects: str = "clinic.book") -> None:
        self.calls: list[str] = []
        self.times = defaultdict[str, list[float]](list)
        self._failures, self._final, self._rejects = failures, final, rejects

    def worker(self, client: Client, queue: str) -> Worker:
        return Worker(client, task_queue=queue, activities=[self.book, self.unbook])

    @activity.defn(name="clinic.book")
    async def book(self, argument: dict[str, Any]) -> str:
        return self._answer("clinic.book")

    @activity.defn(name="clinic.cancel")
    async def unbook(self, argument: dict[str, Any]) -> str:
        return self._answer("clinic.cancel")

    def _answer(self, name: str) -> str:
        self.calls.append(name)
        self.times[name].append(time.monotonic())
        if self.calls.count(name) <= self._failures:
            raise ApplicationError("no connection")
        if name == self._rejects:
            raise ApplicationError("fully booked", type="Rejected", non_retryable=self._final)
        return "done"


def clinic(queue: str, more: str = "") -> str:
    return f"""
        saga: clinic
        steps:
          - id: ask
            uses: clinic.book
            task_queue: {queue}
            retry: {{max_attempts: 4, initial_interval: 100ms}}
            compensate:
              uses: clinic.cancel
              task_queue: {queue}
              retry: {{max_attempts: 3, initial_interval: 100ms}}
            {more}
          - {{id: stop, uses: require, with: {{that: "${{{{ false }}}}", message: closed}}}}
    """


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize(
    ("worker", "more", "expected"),
    [
        (Clinic(), "", ("COMPENSATED", "rejected", "rejected", ["clinic.book"])),
        (Clinic(failures=1), "", ("COMPENSATED", "rejected", "unknown", ["clinic.book"] * 4 + ["clinic.cancel"] * 2)),
        (Clinic(final=False), "", ("COMPENSATED", "unknown", "unknown", ["clinic.book"] * 4 + ["clinic.cancel"])),
        (Clinic(failures=9), "", ("PARKED", "unknown", "unknown", ["clinic.book"] * 4 + ["clinic.cancel"] * 3)),
        (
            Clinic(failures=2, rejects=""),
            "",
            ("COMPENSATED", "rejected", "done", ["clinic.book"] * 3 + ["clinic.cancel"] * 3),
        ),
        (Clinic(rejects="clinic.cancel"), "", ("PARKED", "rejected", "done", ["clinic.book", "clinic.cancel"])),
        (Clinic(), "pivot: true", ("COMPENSATED", "rejected", "rejected", ["clinic.book"])),
    ],
    ids=["first", "second", "repeatable", "failing", "recovered", "undo", "pivot"],
)
async def test_a_rejection_in_the_first_attempt_is_believed_without_its_number(
    env: Environment, worker: Clinic, more: str, expected: tuple[str, str, str, list[str]]
) -> None:
    queue = f"clinic-{uuid.uuid4()}"
    definition = clinic(queue, more)
    if more:
        definition = definition[: definition.index("            compensate:")] + f"            {more}\n"
    async with env.serving(definition) as client, worker.worker(client.temporal, queue):
        story = await run_saga(client, "clinic")
    outcome = (story["state"], story["reason"]["kind"], story["steps"][0]["outcome"], worker.calls)
    assert outcome == expected


@pytest.mark.parametrize("role", ["compensatable", "pivot"])
async def test_a_participant_without_a_key_is_not_called_again_after_an_unknown_attempt(
    env: Environment, role: str
) -> None:
    queue, worker = f"clinic-{uuid.uuid4()}", Clinic(failures=1, rejects="")
    definition = clinic(queue, "idempotent: false")
    if role == "pivot":
        definition = definition[: definition.index("            compensate:")]
        definition += "            idempotent: false\n            pivot: true\n"
    async with env.serving(definition) as client, worker.worker(client.temporal, queue):
        saga_id = await begin(client, "clinic")

        async def settled() -> Any:
            story = await client.show(saga_id)
            return story if story["state"] in ("PARKED", "COMPENSATED") else None

        story = await until(settled)
    assert story["state"] == {"compensatable": "COMPENSATED", "pivot": "PARKED"}[role]
    assert (story["steps"][0]["outcome"], worker.calls.count("clinic.book")) == ("unknown", 1)


@activity.defn(name="later")
async def later(argument: dict[str, Any]) -> str:
    if activity.info().attempt == 1 and not LATER:
        LATER.append(time.monotonic())
        raise ApplicationError("not yet", next_retry_delay=timedelta(seconds=4))
    LATER.append(time.monotonic())
    return "done"


LATER: list[float] = []
"""The times of its attempts."""


async def test_the_delay_that_another_worker_asks_for_is_kept_after_the_first_attempt(env: Environment) -> None:
    queue = f"later-{uuid.uuid4()}"
    async with (
        env.serving(
            abroad(queue, "later").replace(
                '{seats: "${{ steps.ask.result.seats }}", voucher: "${{ steps.ask.result.voucher }}"}',
                "${{ steps.ask.result }}",
            )
        ) as client,
        Worker(client.temporal, task_queue=queue, activities=[later]),
    ):
        assert (await run_saga(client, "abroad"))["output"] == "done"
    first, second = LATER
    assert second - first >= 4.0


async def test_the_attempts_of_another_worker_are_made_at_the_given_intervals(env: Environment) -> None:
    queue, worker = f"clinic-{uuid.uuid4()}", Clinic(failures=9)
    definition = clinic(queue).replace(
        "max_attempts: 4, initial_interval: 100ms", "max_attempts: 3, intervals: [3s, 0s]"
    )
    async with env.serving(definition) as client, worker.worker(client.temporal, queue):
        await run_saga(client, "clinic")
    first, second, third = worker.times["clinic.book"]
    assert second - first >= 3.0
    assert third - second < 3.0


async def test_an_attempt_that_is_due_has_no_time(env: Environment) -> None:
    queue = f"abroad-{uuid.uuid4()}"
    async with env.serving(abroad(queue, "fail")) as client:
        async with Worker(client.temporal, task_queue=queue, activities=[fail]):
            saga_id = await begin(client, "abroad")

            async def failed() -> Any:
                steps = (await client.show(saga_id))["steps"]
                return steps and steps[0]["attempts"]

            await until(failed)

        async def step_when_due() -> Any:
            step = (await client.show(saga_id))["steps"][0]
            return step if step.get("next_attempt_at") is None else None

        step = await until(step_when_due)
        assert step["error"]["message"] == "no connection"
        await client.cancel(saga_id)
