"""Faults caused by operators: cancel, terminate, start twice (cells 24, 25, 31)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from temporalio.client import Client as Temporal

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import HeaderInterceptor
from sagas.errors import RefusedError
from tests.faults.cell_environment import CellEnvironment, default_input
from tests.faults.cells import PREVIOUS, TARGETS
from tests.faults.injection.fault_participant import saga
from tests.helpers.waiting import until

ANSWERS = {TARGETS["B"]: "accepted", TARGETS["P"]: "recorded", TARGETS["C"]: "already"}


async def cancelled(env: CellEnvironment) -> None:
    """Cancel while the attempt is in flight, twice; past the pivot it is refused."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await _cancel(env)
    env.fault_is_over()


async def cancelled_and_refused(env: CellEnvironment) -> None:
    """A cancel is recorded while the pivot is in flight, and then the pivot fails."""
    await env.script_attempts(env.target, "reject")
    await cancelled(env)


async def _cancel(env: CellEnvironment) -> None:
    if env.target == TARGETS["A"]:
        with pytest.raises(RefusedError, match="point of no return"):
            await env.cancel()
        return
    assert await env.cancel() == ANSWERS[env.target]
    assert await env.cancel() == "already"


async def cancelled_natively(env: CellEnvironment) -> None:
    """A native Temporal cancel, as sent from the Web UI."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await env.handle.cancel()
        await asyncio.sleep(0.3)
    env.fault_is_over()


async def cancelled_before_first_task(env: CellEnvironment) -> None:
    """Started and cancelled before any worker has seen it."""
    await env.start()
    await env.handle.cancel()
    env.fault_is_over()
    await env.worker()


async def cancelled_as_it_completes(env: CellEnvironment) -> None:
    """The cancel and the end of the attempt coincide.

    The next step waits for the response to the cancel: on a slow machine the saga could pass its pivot first.
    """
    worker = await env.worker()
    async with env.breakpoint_at("effect", PREVIOUS[TARGETS["P"]]), env.breakpoint_at("commit") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await asyncio.gather(env.cancel(), stop.open())
    env.fault_is_over()


async def terminated(env: CellEnvironment) -> None:
    """Temporal's terminate runs no code of ours; `saga list --stuck` finds it."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await env.handle.terminate("the test's operator")
    await env.effect_is_there()
    env.fault_is_over()

    async def is_listed() -> bool:
        code, output = await saga(env, "list", "--stuck", "-o", "json")
        assert code == 0, output
        return any(row["id"] == env.saga_id and row["state"] == "TERMINATED" for row in json.loads(output))

    await until(is_listed, "the terminated saga in `saga list --stuck`")


async def started_again(env: CellEnvironment) -> None:
    """Five starts at once and one after the end are one saga; another input under its id is refused."""
    client = await env.client()
    await env.worker()
    env.fault_is_over()
    runs = await asyncio.gather(*(client.start("transfer", default_input(), id=env.saga_id) for _ in range(5)))
    assert len({run.run_id for run in runs}) == 1
    assert [run.started for run in runs].count(True) <= 1  # a retried request may have lost its first answer
    await env.finished()
    assert not (await client.start("transfer", default_input(), id=env.saga_id)).started
    with pytest.raises(RefusedError, match="another input"):
        await client.start("transfer", {"customer": "somebody else"}, id=env.saga_id)


async def starts_unanswered(env: CellEnvironment, start: Callable[[Client], Coroutine[Any, Any, Any]]) -> None:
    """Start with a client whose requests arrive and are not answered."""
    proxy, direct = env.proxies["temporal"], await env.client()
    cut = Client(await Temporal.connect(f"127.0.0.1:{proxy.port}", interceptors=[HeaderInterceptor()]), direct.project)
    await cut.search_attributes()
    proxy.blackhole_to_client = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(start(cut), 1)
    proxy.blackhole_to_client = False


async def start_unanswered(env: CellEnvironment) -> None:
    """P0: the start is carried out and its answer gets lost; the caller starts again."""
    proxy, direct = env.proxies["temporal"], await env.client()
    await starts_unanswered(env, lambda cut: cut.start("transfer", default_input(), id=env.saga_id))
    run = await direct.start("transfer", default_input(), id=env.saga_id)
    assert not run.started
    proxy.cut()
    env.fault_is_over()
    await env.worker()
