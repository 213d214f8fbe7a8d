"""Workers that are killed while sagas request, hold, await and release semantic locks (row 36).

The cell's saga and a second one, `visit`, need the same key; one worker runs both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from saga_workers.client import SagaHandle
from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment
from tests.helpers.waiting import LIMIT, until

LOCKED: Mapping[str, str] = {"saga: transfer\n": "saga: transfer\nlocks: {keys: [bank], wait: 60s}\n"}
LOCKED_UNTIL_COMMIT: Mapping[str, str] = {
    "saga: transfer\n": "saga: transfer\nlocks: {keys: [bank], wait: 60s, until: commit}\n"
}

REQUEST = Target("locks", "do")
RELEASE = Target("locks", "undo")


async def killed_after_request(env: CellEnvironment) -> None:
    """The worker is killed after the lock is granted and before it reports that."""
    worker = await env.worker()
    async with env.breakpoint_at("commit", REQUEST) as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        worker.freeze()
    await until(lambda: env.admin("select 1 from saga_lock where saga_id = %s", env.saga_id), "the lock")
    worker.kill()
    env.fault_is_over()
    async with env.breakpoint_at("effect") as held:
        worker = await env.worker()
        await held.reached(by=worker.pid)
        second = await _start_second(env)
    await _check_locks(env, second)


async def killed_while_held(env: CellEnvironment) -> None:
    """The worker is killed while one of its sagas holds the lock, within a transaction, and another waits for it."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        second = await _start_second(env)
        worker.kill()
    await env.sessions_are_over(worker.pid)
    assert await env.admin("select saga_id from saga_lock") == [(env.saga_id,)]
    env.fault_is_over()
    await env.worker()
    await _check_locks(env, second)


async def killed_after_release(env: CellEnvironment) -> None:
    """The worker is killed after the release, which has granted the next request, and before it tells that saga."""
    await _killed_after_release(env)


async def killed_after_release_at_commit(env: CellEnvironment) -> None:
    """Kill the worker after it has released locks at the commit point."""
    await _killed_after_release(env, unlocked=("ship", "thank"))


async def _killed_after_release(env: CellEnvironment, unlocked: Sequence[str] = ()) -> None:
    worker = await env.worker()
    async with env.breakpoint_at("commit", RELEASE) as stop:
        async with env.breakpoint_at("effect") as held:
            await env.start()
            await held.reached(by=worker.pid)
            second = await _start_second(env)
        await stop.reached(by=worker.pid)
        worker.freeze()
    granted = "select 1 from saga_lock_request where saga_id = %s and status = 'granted'"
    await until(lambda: env.admin(granted, second.id), "the grant")
    worker.kill()
    env.fault_is_over()
    await env.worker()
    await _check_locks(env, second, unlocked)


async def session_terminated_at_release(env: CellEnvironment) -> None:
    """An administrator ends the session of the release, inside its COMMIT."""
    await _terminated_at_release(env)


async def session_terminated_at_release_at_commit(env: CellEnvironment) -> None:
    """Terminate the session that releases locks at the commit point."""
    await _terminated_at_release(env, unlocked=("ship", "thank"))


async def _terminated_at_release(env: CellEnvironment, unlocked: Sequence[str] = ()) -> None:
    worker = await env.worker()
    async with env.breakpoint_at("commit", RELEASE) as stop:
        async with env.breakpoint_at("effect") as held:
            await env.start()
            await held.reached(by=worker.pid)
            second = await _start_second(env)
        await env.admin("select pg_terminate_backend(%s)", await stop.reached(by=worker.pid))
    env.fault_is_over()
    await _check_locks(env, second, unlocked)


async def _start_second(env: CellEnvironment) -> SagaHandle:
    """Start the second saga, and wait until its request is behind that of the first."""
    second = await (await env.client()).start("visit", {}, id=f"visit-{env.database}")
    await until(lambda: env.admin("select 1 from saga_lock_wait where saga_id = %s", second.id), "the request")
    return second


async def _check_locks(env: CellEnvironment, second: SagaHandle, unlocked: Sequence[str] = ()) -> None:
    """Both sagas end, one after the other; the second one takes effect once, and no row of a lock is left.

    ``unlocked`` are the steps of the first saga that run after its release.
    """
    await env.finished()
    await asyncio.wait_for(second.result(), LIMIT)
    for table in ("saga_lock", "saga_lock_wait"):
        assert await env.admin(f"select * from {table}") == [], f"{table} is not empty"
    requests = await env.admin("select saga_id, status from saga_lock_request")
    assert sorted(requests) == sorted([(env.saga_id, "closed"), (second.id, "closed")])
    effects = await env.admin("select saga_id, step, op from journal order by pg_xact_commit_timestamp(xmin), id")
    assert effects.count((second.id, "visit", "do")) == 1
    later = effects[effects.index((second.id, "visit", "do")) + 1 :]
    assert [step for _, step, _ in later if step not in unlocked] == [], "the sagas ran at the same time"
