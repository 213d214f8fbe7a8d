"""Faults of the servers and of the wires to them (cells 5, 9, 11, 12)."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import WorkflowHandle

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment
from tests.faults.cells import PREVIOUS
from tests.helpers.fault_proxy import POSTGRESQL_COMMIT, OnTrigger
from tests.helpers.waiting import until


async def temporal_killed(env: CellEnvironment) -> None:
    """The Temporal server is killed during an attempt and restarted on its store."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await asyncio.to_thread(env.temporal.kill)
        await stop.open()
        await env.effect_is_there()  # the effect needs no Temporal
    await asyncio.to_thread(env.temporal.start)
    env.fault_is_over()


async def temporal_cut(env: CellEnvironment) -> None:
    """The wire between the worker and Temporal is cut while an attempt makes its effect."""
    proxy, worker = env.proxies["temporal"], await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        proxy.refuse = True
        proxy.cut()
    await env.effect_is_there()
    await asyncio.sleep(1)
    proxy.refuse = False
    env.fault_is_over()


async def database_cut(env: CellEnvironment) -> None:
    """The wire to the database is cut in the middle of a transaction, and stays so for a while."""
    proxy, worker = env.proxies["database"], await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        proxy.refuse = True
        proxy.cut()
    await asyncio.sleep(1)
    proxy.refuse = False
    env.fault_is_over()


async def database_killed(env: CellEnvironment) -> None:
    """PostgreSQL is killed during a transaction and recovers from its WAL."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await asyncio.to_thread(env.server.kill)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(env.server.start)
    env.fault_is_over()


async def database_errors(env: CellEnvironment) -> None:
    """One attempt each ends with a serialization failure, a deadlock, a lock timeout and a shutdown."""
    await env.worker()
    await env.script_attempts(env.target, "40001", "40P01", "55P03", "57P01", "ok")
    await env.start()


async def session_terminated(env: CellEnvironment) -> None:
    """An administrator ends the session of a running transaction."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        backend = await stop.reached(by=worker.pid)
        await env.admin("select pg_terminate_backend(%s)", backend)
        await until(
            lambda: env.admin("select 1 where not exists (select 1 from pg_stat_activity where pid = %s)", backend),
            "the end of the session",
        )
    env.fault_is_over()


async def no_session_free(env: CellEnvironment) -> None:
    """The database accepts no more connections (its workers are not superusers) and terminates existing ones."""
    worker = await env.worker()
    name = env.database
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        backend = await stop.reached(by=worker.pid)
        await env.admin(f'alter database "{name}" allow_connections false', database="postgres")
        await env.admin("select pg_terminate_backend(%s)", backend, database="postgres")
        await asyncio.sleep(1)
        await env.admin(f'alter database "{name}" allow_connections true', database="postgres")
    env.fault_is_over()


async def pool_exhausted(env: CellEnvironment) -> None:
    """Others hold every connection that the worker may open, and the attempt finds none in its time."""
    worker, workflow_worker = await env.worker(), await env.own_workflow_worker()
    previous, client = PREVIOUS[env.target], await env.client()
    async with env.breakpoint_at("effect", Target("occupy", "do")):
        async with env.breakpoint_at("commit", previous) as stop:
            await env.start()
            await stop.reached(by=worker.pid)
            others = await client.start("occupy", {}, id=f"occupy-{env.database}")
            occupying_saga = client.temporal.get_workflow_handle(others.id)
            await until(lambda: has_started_attempts(occupying_saga, env.pool), "the others' attempts")
            workflow_worker.freeze()
        # The previous operation has released its connection, and the next one has not requested it yet.
        waiting = "select 1 where %s = (select count(*) from pg_stat_activity where application_name = %s"
        waiting += " and wait_event_type = 'Lock')"
        await until(lambda: env.admin(waiting, env.pool, f"saga-worker-{worker.pid}"), "a full pool")
        workflow_worker.thaw()
        await until(lambda: _found_no_connection(env), "an attempt that found no connection")
    env.fault_is_over()
    await others.result()


async def has_started_attempts(saga: WorkflowHandle[Any, Any], number: int | None) -> bool:
    return len((await saga.describe()).raw_description.pending_activities) == number


async def _found_no_connection(env: CellEnvironment) -> bool:
    described = await env.handle.describe()
    pending = described.raw_description.pending_activities
    return any(
        "no connection" in activity.last_failure.message for activity in pending if activity.activity_id == env.activity
    )


async def commit_unanswered(env: CellEnvironment) -> None:
    """P2c: COMMIT succeeds, its response is lost, and no recheck is possible before the retries are exhausted."""
    await _commit_lost(env, "cut_after")


async def commit_lost(env: CellEnvironment) -> None:
    """P2c: COMMIT never arrives, which looks the same to the worker."""
    await _commit_lost(env, "cut_before")


async def _commit_lost(env: CellEnvironment, how: OnTrigger) -> None:
    proxy, worker = env.proxies["database"], await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        backend = await stop.reached(by=worker.pid)
        proxy.refuse = True
        proxy.arm(POSTGRESQL_COMMIT, how, port=await env.client_port(backend))
    await env.recorded(env.target, "failed")
    assert proxy.triggered == 1
    await asyncio.sleep(0.5)  # whatever comes next tries, and cannot
    proxy.refuse = False
    env.fault_is_over()
