"""Faults of bulk workflows that those of single sagas do not cover: kills at points inside a worker, and people."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from saga_workers.reconcile.open_saga_findings import find_left_claims
from saga_workers.stuck.continuation import continue_saga
from sagas.bulk.names import DETACH_UPDATE
from sagas.errors import RefusedError
from tests.faults.breakpoints import Target
from tests.faults.bulk_environment import BulkCellEnvironment
from tests.faults.cell_environment import CellEnvironment, activity_id, default_input
from tests.faults.cells import PREVIOUS, TARGETS
from tests.faults.injection import fault_operator as people
from tests.faults.injection import fault_participant as participant
from tests.faults.injection.fault_servers import has_started_attempts
from tests.helpers.fault_proxy import POSTGRESQL_COMMIT, OnTrigger
from tests.helpers.waiting import until

DIES_AT_START = """
import os, signal
from saga_activities.bulk.bulk_activities import BulkActivities

whole = BulkActivities._perform_chunk


async def perform(self, request, attempt):
    if (request["entry"].partition("#")[0], request["op"]) == ({step!r}, {op!r}):
        os.kill(os.getpid(), signal.SIGKILL)
    return await whole(self, request, attempt)


BulkActivities._perform_chunk = perform
"""
DIES_IN_WORKFLOW_TASK = """
import os, signal
from sagas.machine.machine import Machine

whole = Machine.next


def next(self, event):
    if getattr(event, "id", None) == {activity!r}:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, event)


Machine.next = next
"""
DIES_AS_IT_LEAVES = """
import os, signal
from saga_workers.bulk.detached_starts import SagaDetacher

whole = SagaDetacher._start


async def start(self, *arguments):
    {started}
    os.kill(os.getpid(), signal.SIGKILL)


SagaDetacher._start = start
"""
DECIDES_OTHERWISE = """
from dataclasses import replace

from sagas.machine import calls

whole = calls.send_call


def send(run, entry, ask, *rest, **more):
    whole(run, entry, ask, *rest, **more)
    if (entry.id, ask) == ({step!r}, {op!r}):
        run.commands[-1] = replace(run.commands[-1], id="something else")


calls.send_call = send
"""
RAISES = DIES_IN_WORKFLOW_TASK.replace("os.kill(os.getpid(), signal.SIGKILL)", 'raise RuntimeError("a bug")')


def bulk(env: CellEnvironment) -> BulkCellEnvironment:
    assert isinstance(env, BulkCellEnvironment)
    return env


async def killed_before_start(env: CellEnvironment) -> None:
    """P1: the worker is killed as a chunk begins, before it asks the database for anything."""
    await _dies(env, DIES_AT_START.format(step=env.target.step, op=env.target.op))
    count = await env.admin("select count(*) from journal where (step, op) = (%s, %s)", env.target.step, env.target.op)
    assert count == [(0,)]
    await env.worker()


async def killed_in_workflow_task(env: CellEnvironment) -> None:
    """P4, P5: the worker is killed in the workflow task with the outcomes of the chunk, after the first saga took its
    own."""
    await _dies(env, DIES_IN_WORKFLOW_TASK.format(activity=activity_id(env.target)))
    await env.effect_is_there()
    await env.worker()


async def killed_before_it_leaves(env: CellEnvironment) -> None:
    """The refused saga has to leave, and the worker is killed before it starts its own workflow."""
    await _killed_as_it_leaves(env, started="")
    assert await bulk(env).own_workflow(env.saga_id) is None
    await env.worker()


async def killed_after_it_left(env: CellEnvironment) -> None:
    """Kill the worker after the saga's own workflow has started: the bulk workflow does not know of it."""
    await _killed_as_it_leaves(env, started="await whole(self, *arguments)")
    assert await bulk(env).own_workflow(env.saga_id) is not None
    await env.worker()
    await env.handle.result()  # the claim is given up with the next attempt


async def _killed_as_it_leaves(env: CellEnvironment, started: str) -> None:
    await env.script_attempts(env.target, "reject")
    await _dies(env, DIES_AS_IT_LEAVES.format(started=started))


async def _dies(env: CellEnvironment, code: str) -> None:
    worker = await env.worker(code=code)
    await env.start()
    await until(lambda: _is_gone(worker), "the end of the worker")
    env.fault_is_over()


async def _is_gone(worker: object) -> bool:
    return not worker.running  # pyright: ignore[reportAttributeAccessIssue]


async def frozen_before_insert(env: CellEnvironment) -> None:
    """A zombie: its worker freezes with the chunk's first statement in flight, which arrives after all sagas ended."""
    proxy, worker = env.proxies["database"], await env.worker()
    proxy.arm(f'"{env.target.step}",1,"do","{env.target.op}"'.encode(), "hold")
    await env.start()
    await until(lambda: _truth(proxy.triggered > 0), "the first statement")
    worker.freeze()
    await env.worker()
    env.fault_is_over()
    await env.finished()
    proxy.release()
    await asyncio.sleep(0.2)  # the late statement runs while its worker is still frozen
    worker.thaw()
    await env.sessions_are_over(worker.pid)


async def frozen_after_commit(env: CellEnvironment) -> None:
    """A zombie whose effects are there while Temporal knows nothing of them."""
    worker = await env.worker()
    async with env.breakpoint_at("commit") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        worker.freeze()
    await env.effect_is_there()
    await env.worker()
    env.fault_is_over()
    await env.finished()
    worker.thaw()
    await env.sessions_are_over(worker.pid)


async def commit_unanswered(env: CellEnvironment) -> None:
    """P2c: the COMMIT of a chunk succeeds, and its response is lost."""
    await _commit_lost(env, "cut_after")


async def commit_lost(env: CellEnvironment) -> None:
    """P2c: the COMMIT of a chunk never arrives, which looks the same to the worker."""
    await _commit_lost(env, "cut_before")


async def _commit_lost(env: CellEnvironment, how: OnTrigger) -> None:
    proxy, worker = env.proxies["database"], await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        backend = await stop.reached(by=worker.pid)
        proxy.arm(POSTGRESQL_COMMIT, how, port=await env.client_port(backend))
        proxy.refuse = True
    await until(lambda: _truth(proxy.triggered > 0), "the COMMIT")
    await asyncio.sleep(1.0)  # whatever comes next tries, and cannot
    proxy.refuse = False
    env.fault_is_over()


async def code_raises(env: CellEnvironment) -> None:
    """A build fails when it processes the chunk's outcomes; the next build processes them again."""
    broken = await env.worker(code=RAISES.format(activity=activity_id(env.target)))
    await env.start()
    await env.effect_is_there()
    await until(lambda: _workflow_task_fails(env), "a workflow task that fails")
    broken.kill()
    env.fault_is_over()
    await env.worker()


async def code_decides_otherwise(env: CellEnvironment) -> None:
    """A build that would have performed another call takes over while the chunk is performed: it may not go on."""
    old = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=old.pid)
        old.kill()
        changed = await env.worker(code=DECIDES_OTHERWISE.format(step=env.target.step, op=env.target.op))
    await until(lambda: _workflow_task_fails(env), "a workflow task that fails")
    assert "Nondeterminism" in changed.log.read_text(encoding="utf-8", errors="replace")
    changed.kill()
    env.fault_is_over()
    await env.worker()


async def _workflow_task_fails(env: CellEnvironment) -> bool:
    return (await env.handle.describe()).raw_description.pending_workflow_task.attempt > 1


async def refused_at_registration(env: CellEnvironment) -> None:
    """Definitions that could leave something half done are not started in bulk either, and claim nothing."""
    path = env.folder / "fork.saga.yaml"
    good = path.read_text(encoding="utf-8")
    (env.folder / "rows.jsonl").write_text(f"{json.dumps(default_input())}\n", encoding="utf-8")
    for name, (old, new) in participant.POISON.items():
        path.write_text(good.replace(old, new), encoding="utf-8")
        code, output = await participant.saga(env, "start", "fork", "--from", "rows.jsonl", "--bulk")
        assert code == 2, f"{name}: {output}"
        assert "error" in output, f"{name}: {output}"
    assert await env.admin("select saga_id from saga_claim union all select saga_id from saga_guard") == []


async def pool_exhausted(env: CellEnvironment) -> None:
    """Others hold every connection that the worker may open, and the chunk finds none in its time."""
    worker, client, previous = await env.worker(), await env.client(), PREVIOUS[env.target]
    async with env.breakpoint_at("effect", Target("occupy", "do")):
        async with env.breakpoint_at("commit", previous) as stop:
            await env.start()
            await stop.reached(by=worker.pid)
            others = await client.start("occupy", {}, id=f"occupy-{env.database}")
            occupying = client.temporal.get_workflow_handle(others.id)
            await until(lambda: has_started_attempts(occupying, env.pool), "the others' attempts")
            await asyncio.sleep(0.5)  # one of them waits for the connection of the chunk that is about to end
        await env.recorded(env.target)
        count = "select count(*) from journal where (step, op) = (%s, %s)"
        assert await env.admin(count, env.target.step, env.target.op) == [(0,)]
    env.fault_is_over()
    await others.result()


async def start_unanswered(env: CellEnvironment) -> None:
    """P0: the start is carried out and its answer gets lost; the caller starts the same sagas again."""
    await people.starts_unanswered(env, lambda cut: bulk(env).start_bulk(client=cut))
    await env.start()
    env.proxies["temporal"].cut()
    env.fault_is_over()
    await env.worker()
    await env.finished()
    temporal = (await env.client()).temporal
    started = [workflow async for workflow in temporal.list_workflows(f"TaskQueue = '{env.queue}'")]
    results = [await temporal.get_workflow_handle(run.id).result() for run in started]
    assert sorted(sum(result["counts"].values()) for result in results) == [0, len(bulk(env).members)]


async def unknown_saga(env: CellEnvironment) -> None:
    """A bulk workflow of a saga that no definition has is refused, and nothing of it is run."""
    client = await env.client()
    await env.worker()
    request = {"saga": "transfers", "sagas": [[id, default_input(), {}] for id in bulk(env).members]}
    run = await client.temporal.start_workflow("saga.bulk", request, id=f"bulk~{env.saga_id}", task_queue=env.queue)
    with pytest.raises(WorkflowFailureError) as refused:
        await asyncio.wait_for(run.result(), 30)
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "SagaRefused"
    assert await env.admin("select 1 from journal union all select 1 from saga_guard") == []
    assert await env.admin("select 1 from saga_claim") == []


async def results_too_large_together(env: CellEnvironment) -> None:
    """Each result fits into a payload, and those of the chunk together do not."""
    await env.worker()
    await bulk(env).script_all(env.target, "large")
    await env.start()


async def cancelled(env: CellEnvironment) -> None:
    """One saga is cancelled while the chunk with it is performed: it leaves when the chunk has ended.

    Before the pivot its next step waits, so that the cancel arrives before the pivot.
    """
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        cancelling = asyncio.create_task(env.cancel())
        await until(lambda: _is_told_to_leave(env), "the request to leave")
        if env.target == TARGETS["B"]:
            async with env.breakpoint_at("effect", Target("order", "do")):
                await stop.open()
                assert await cancelling == "accepted"
        else:
            await stop.open()
            with suppress(RefusedError) if env.target == TARGETS["C"] else pytest.raises(RefusedError):
                assert await cancelling == "already"
    env.fault_is_over()


async def cancelled_and_refused(env: CellEnvironment) -> None:
    """A cancel is recorded while the chunk with the pivot is performed, and then the pivot of this saga fails."""
    worker = await env.worker()
    await env.script_attempts(env.target, "reject")
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        cancelling = asyncio.create_task(env.cancel())
        await until(lambda: _is_told_to_leave(env), "the request to leave")
    assert await cancelling == "accepted"
    env.fault_is_over()


async def cancelled_as_it_completes(env: CellEnvironment) -> None:
    """The cancel and the end of the chunk coincide.

    The request goes to the workflow itself: the look-ups of `saga cancel` would make it late each time. The next step
    waits until it is there: on a slow machine the saga could pass its pivot first.
    """
    worker = await env.worker()
    async with env.breakpoint_at("effect", PREVIOUS[TARGETS["P"]]):
        async with env.breakpoint_at("commit") as stop:
            await env.start()
            await stop.reached(by=worker.pid)
            arguments = [env.saga_id, {"reason": "the test changes its mind", "who": "tester"}]
            update = env.handle.execute_update(DETACH_UPDATE, args=arguments, result_type=str)
            cancelling = asyncio.create_task(update)
            await stop.open()
        await until(lambda: _is_told_to_leave(env), "the request to leave")
    assert await cancelling == "detached"
    env.fault_is_over()


async def _is_told_to_leave(env: CellEnvironment) -> bool:
    accepted = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
    return any([event.event_type == accepted async for event in env.handle.fetch_history_events()])


async def terminated(env: CellEnvironment) -> None:
    """Temporal's terminate runs no code of ours; the claims tell of the sagas, and `reconcile` continues them."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        await env.handle.terminate("the test's operator")
    await env.sessions_are_over(worker.pid)
    env.fault_is_over()
    client, members = await env.client(), bulk(env).members
    claims = await find_left_claims(client.locator, "bank")
    assert {row.saga_id for row in claims} == set(members)
    said = [continue_saga(client.locator, id, "tester", "the test continues it") for id in members]
    assert all("; it is " in result for result in await asyncio.gather(*said))


async def started_again(env: CellEnvironment) -> None:
    """Three starts of the same sagas at once, and one after their end: each saga runs once."""
    members = bulk(env)
    await env.worker()
    await env.start()
    others = await asyncio.gather(*(members.start_bulk() for _ in range(2)))
    await env.finished()
    results = [await handle.result() for handle in (env.handle, *others, await members.start_bulk())]
    ran = [sum(result["counts"].values()) for result in results]
    assert sum(ran) == len(members.members), results
    for result, count in zip(results, ran, strict=True):
        assert len(result["existing"]) == len(members.members) - count
        assert all(row["same"] for row in result["existing"].values())


async def started_by_both(env: CellEnvironment) -> None:
    """One of the sagas is started singly at the same moment: it runs once."""
    client = await env.client()
    await env.worker()
    await asyncio.gather(env.start(), client.start("transfer", default_input(), id=env.saga_id))


async def branch_rejects(env: CellEnvironment) -> None:
    """One branch of one saga is refused while its sibling is in flight: that one is awaited, then undone."""
    await env.worker()
    await env.script_attempts(Target("hold", "do"), "reject")
    async with env.breakpoint_at("effect", Target("debit", "do")) as stop:
        await env.start()
        await stop.reached()
        await env.recorded(Target("hold", "do"))
        await asyncio.sleep(0.3)
        assert not await env.admin("select 1 from saga_guard where op = 'undo' and step = 'debit'")


async def child_rejects(env: CellEnvironment) -> None:
    """The sagas leave for their nested ones, and these are refused: their parents go backward."""
    await env.worker()
    await bulk(env).script_all(Target("hold", "do"), "reject")
    await env.start()


async def arguments_too_large(env: CellEnvironment) -> None:
    """Arguments that no payload carries, and that cannot be compressed, of one saga: found before the effect."""
    await env.worker()
    given = default_input()
    source = random.Random(22)
    given["notes"]["release" if env.target.op == "undo" else env.target.step] = source.randbytes(450_000).hex()
    await env.start(given)


async def _truth(value: bool) -> bool:
    return value
