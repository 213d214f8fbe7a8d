"""Faults of the servers and of the wires to them (cells 5, 9, 11, 12)."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import WorkflowHandle

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import Stage
from tests.faults.cells import PREVIOUS
from tests.helpers.fault_proxy import OnTrigger


async def temporal_killed(stage: Stage) -> None:
    """The Temporal server dies while an attempt runs, and comes back on its store."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await asyncio.to_thread(stage.temporal.kill)
        await gate.open()
        await stage.effect_is_there()  # the effect needs no Temporal
    await asyncio.to_thread(stage.temporal.start)
    stage.fault_is_over()


async def temporal_cut(stage: Stage) -> None:
    """The wire between the worker and Temporal is cut while an attempt makes its effect."""
    proxy, worker = stage.proxies["temporal"], await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        proxy.refuse = True
        proxy.cut()
    await stage.effect_is_there()
    await asyncio.sleep(1)
    proxy.refuse = False
    stage.fault_is_over()


async def database_cut(stage: Stage) -> None:
    """The wire to the database is cut in the middle of a transaction, and stays so for a while."""
    proxy, worker = stage.proxies["database"], await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        proxy.refuse = True
        proxy.cut()
    await asyncio.sleep(1)
    proxy.refuse = False
    stage.fault_is_over()


async def database_killed(stage: Stage) -> None:
    """PostgreSQL dies in the middle of a transaction, and recovers from its log."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await asyncio.to_thread(stage.server.kill)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(stage.server.start)
    stage.fault_is_over()


async def database_errors(stage: Stage) -> None:
    """One attempt each ends with a serialization failure, a deadlock, a lock timeout and a shutdown."""
    await stage.worker()
    await stage.conduct(stage.target, "40001", "40P01", "55P03", "57P01", "ok")
    await stage.start()


async def session_terminated(stage: Stage) -> None:
    """An administrator ends the session of a running transaction."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        backend = await gate.reached(by=worker.pid)
        await stage.admin("select pg_terminate_backend(%s)", backend)
        await stage.until(
            lambda: stage.admin("select 1 where not exists (select 1 from pg_stat_activity where pid = %s)", backend),
            "the end of the session",
        )
    stage.fault_is_over()


async def no_session_free(stage: Stage) -> None:
    """The database takes no more connections (its workers are no superusers) and ends those it has."""
    worker = await stage.worker()
    name = stage.database
    async with stage.gate("effect") as gate:
        await stage.start()
        backend = await gate.reached(by=worker.pid)
        await stage.admin(f'alter database "{name}" allow_connections false', database="postgres")
        await stage.admin("select pg_terminate_backend(%s)", backend, database="postgres")
        await asyncio.sleep(1)
        await stage.admin(f'alter database "{name}" allow_connections true', database="postgres")
    stage.fault_is_over()


async def pool_exhausted(stage: Stage) -> None:
    """Others hold every connection that the worker may open, and the attempt finds none in its time."""
    worker, flows = await stage.worker(), await stage.own_flows()
    previous, client = PREVIOUS[stage.target], await stage.client()
    async with stage.gate("effect", Target("crowd", "do")):
        async with stage.gate("commit", previous) as gate:
            await stage.start()
            await gate.reached(by=worker.pid)
            others = await client.start("crowd", {}, id=f"crowd-{stage.database}")
            crowd = client.temporal.get_workflow_handle(others.id)
            await stage.until(lambda: _asked(crowd, stage.pool), "the others' attempts")
            flows.freeze()
        # The previous operation has given its connection back, and nobody has asked for the next one yet.
        waiting = "select 1 where %s = (select count(*) from pg_stat_activity where application_name = %s"
        waiting += " and wait_event_type = 'Lock')"
        await stage.until(lambda: stage.admin(waiting, stage.pool, f"saga-worker-{worker.pid}"), "a full pool")
        flows.thaw()
        await stage.until(lambda: _found_no_room(stage), "an attempt that found no connection")
    stage.fault_is_over()
    await others.result()


async def _asked(saga: WorkflowHandle[Any, Any], number: int | None) -> bool:
    return len((await saga.describe()).raw_description.pending_activities) == number


async def _found_no_room(stage: Stage) -> bool:
    described = await stage.handle.describe()
    pending = described.raw_description.pending_activities
    return any("no connection" in one.last_failure.message for one in pending if one.activity_id == stage.activity)


async def commit_unanswered(stage: Stage) -> None:
    """P2c: COMMIT is carried out, its answer gets lost, and nobody can ask before the step's policy has ended."""
    await _commit_lost(stage, "cut_after")


async def commit_lost(stage: Stage) -> None:
    """P2c: COMMIT never arrives, which looks the same to the worker."""
    await _commit_lost(stage, "cut_before")


async def _commit_lost(stage: Stage, how: OnTrigger) -> None:
    proxy, worker = stage.proxies["database"], await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        proxy.refuse = True
        proxy.arm(b"COMMIT\0", how)
    await stage.recorded(stage.target, "failed")
    assert proxy.triggered == 1
    await asyncio.sleep(0.5)  # whatever comes next tries, and cannot
    proxy.refuse = False
    stage.fault_is_over()
