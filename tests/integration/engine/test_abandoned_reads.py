"""A rollback does not wait for a read in flight, or for a probe: how it ends changes nothing that has to be undone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from sagas import Absent, Rejected, Step
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, row, run_saga, states

READS = """
    saga: reads
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: look, uses: work, effect: none, timeout: 1h, for_each: [1, 2], max_parallel: 2, needs: [a]}
      - {id: ask, uses: plain, effect: none, timeout: 1h, needs: [a]}
      - {id: lost, uses: work, timeout: 1h, needs: [a], compensate: unwork,
         retry: {max_attempts: 1}, settle: 50ms, probe: {uses: look, with: {}, timeout: 1h}}
"""
AGAIN = """
    saga: reads-again
    steps:
      - {id: a, uses: book, compensate: unbook, savepoint: {attempts: 2}}
      - {id: look, uses: work, effect: none, timeout: 1h, needs: [a]}
      - {id: b, uses: book, compensate: unbook, needs: [a]}
"""


async def test_a_cancel_does_not_wait_for_what_only_reads(env: Environment) -> None:
    go = asyncio.Event()

    async def hang(_: Step) -> str:
        await go.wait()
        return "too late"

    env.plan |= {f"do {id}": [hang] for id in ("look#0", "look#1", "ask")}
    env.plan |= {"do lost": [ConnectionError("lost")], "probe lost": [hang, Absent()]}
    async with env.serving(READS) as client, AsyncExitStack() as stack:
        stack.callback(go.set)  # no worker can end a thread
        saga = await begin(client, "reads")
        hanging = {"do look#0", "do look#1", "do ask", "probe lost"}
        await until(lambda: hanging <= set(env.log()))
        assert await handle(client, saga).execute_update("cancel") == "accepted"
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert states(story)["lost"] == "NOTHING_TO_UNDO"
    assert {row(story, id)["state"] for id in ("look#0", "look#1", "ask")} == {"UNKNOWN"}
    assert env.log()[-2:] == ["probe lost", "undo a"]
    assert await env.effects() == []


async def test_a_read_that_nobody_waits_for_runs_again_after_a_savepoint(env: Environment) -> None:
    """The first attempt may still be open then, with an activity id that no other one may have."""
    go, reading = asyncio.Event(), asyncio.Event()

    async def hang(_: Step) -> str:
        reading.set()
        await go.wait()
        return "too late"

    async def refuse(_: Step) -> None:
        await reading.wait()
        raise Rejected("full")

    env.plan |= {"do look": [hang, "seen"], "do b": [refuse, {}]}
    async with env.serving(AGAIN) as client:
        story = await run_saga(client, "reads-again")
        go.set()
    assert (story["state"], row(story, "look")["result"]) == ("COMPLETED", "seen")
    assert env.log().count("do look") == 2
