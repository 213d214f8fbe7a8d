"""A question to many sagas reaches all of them."""

from __future__ import annotations

import asyncio

from temporalio.service import RPCError, RPCStatusCode

from saga_workers import many_requests
from saga_workers.many_requests import ask_each, worst_code
from saga_workers.temporal.temporal_runs import NoAnswer
from sagas.errors import RefusedError, SagaError, UsageError


async def test_every_saga_is_queried_despite_failures() -> None:
    ends = {
        "a": RefusedError("no"),
        "b": UsageError("unknown"),
        "c": RPCError("too busy", RPCStatusCode.RESOURCE_EXHAUSTED, b""),
        "d": None,
    }

    async def ask(id: str) -> str:
        error = ends[id]
        if error is not None:
            raise error
        return id

    answers = await ask_each(ends, ask)
    assert [type(answer) for answer in answers] == [RefusedError, UsageError, SagaError, str]
    assert [worst_code(answers[number:]) for number in range(4)] == [9, 2, 1, 0]


async def test_queries_run_concurrently_up_to_a_limit() -> None:
    now, most = 0, 0
    full = asyncio.Event()

    async def ask(number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == many_requests.AT_ONCE:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        now -= 1
        return number

    assert await ask_each(range(500), ask) == list(range(500))
    assert most == many_requests.AT_ONCE


async def test_a_saga_gets_one_query_at_a_time_and_none_after_a_timeout() -> None:
    asked: list[str] = []
    open_: set[str] = set()

    async def ask(target: str) -> str:
        saga = target[0]
        assert saga not in open_
        open_.add(saga)
        asked.append(target)
        await asyncio.sleep(0)
        open_.remove(saga)
        if target == "b1":
            raise NoAnswer("b is silent")
        return target

    answers = await ask_each(["a1", "b1", "a2", "b2", "b3", "a3"], ask, saga_of=lambda target: target[0])
    assert [answer if isinstance(answer, str) else "?" for answer in answers] == ["a1", "?", "a2", "?", "?", "a3"]
    assert sorted(asked) == ["a1", "a2", "a3", "b1"]
