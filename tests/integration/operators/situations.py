"""Situations in which an effect is open or a saga cannot end, each made on the stack; gives the id of its saga."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

import psycopg
import pytest
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from sagas.protocol.payloads import DEFINITION_HEADER, STARTED_AT_MEMO, UNDO_SUFFIX
from tests.helpers import eager_start, run_changes
from tests.helpers.waiting import until
from tests.integration.operators.troubled_project import Stack, project_of


async def parked(stack: Stack, saga: str) -> str:
    id = await stack.start(saga)

    async def is_parked() -> bool:
        return await stack.state(id) == "PARKED"

    await until(is_parked)
    return id


async def undo_parked(stack: Stack) -> str:
    return await parked(stack, "undo-parks")


async def step_parked(stack: Stack) -> str:
    return await parked(stack, "pivot-passed")


async def parent_blocked(stack: Stack) -> str:
    id = await stack.start("parent")

    async def blocked() -> bool:
        return bool((await stack.client.show(id))["parked"])

    await until(blocked)
    return id


async def waiting(stack: Stack, saga: str = "waiting", client: Client | None = None, **input: object) -> str:
    id = await stack.start(saga, input, client)
    await stack.waits(id, client)
    return id


async def overdue(stack: Stack) -> str:
    return await waiting(stack, "late")


async def failing(stack: Stack) -> str:
    return await stack.start("failing")


async def unserved_queue(stack: Stack) -> str:
    return await stack.start("elsewhere")


async def without_worker(stack: Stack) -> str:
    return await stack.start("waiting", client=await Client.connect(project_of(stack.folder, "idle.toml")))


async def failing_task(stack: Stack) -> str:
    return await stack.start("waiting", client=await Client.connect(project_of(stack.folder, "broken.toml")))


async def paused(stack: Stack) -> str:
    id = await waiting(stack)
    assert (await stack.saga("pause", id, "--reason", "a test")).code == 0
    return id


async def paused_by_name(stack: Stack) -> str:
    words = ("pause", "--saga", "held-by-name", "--reason", "a test")
    assert (await stack.saga(*words, config="ledger.toml")).code == 0
    return await stack.start("held-by-name", client=stack.ledger)


async def held_by_breaker(stack: Stack) -> str:
    """Nothing listens at the address of its connection, which others need, too: one alone would make each attempt."""
    ids = [await stack.start("held-by-breaker", client=stack.ledger) for _ in range(3)]
    return ids[0]


async def waits_for_a_parked_saga(stack: Stack) -> str:
    """The holder is stuck because it is parked; the second one, because it waits for its lock."""
    holder = await waiting(stack, "locked", key="shared")
    assert (await stack.saga("pause", holder, "--reason", "a test")).code == 0
    id = await stack.start("locked", {"key": "shared"})

    async def asked() -> bool:
        return bool(stack.sql("select 1 from saga_lock_wait where saga_id = %s", id))

    await until(asked)
    stack.sql("update saga_lock_wait set since = since - 1200")
    return id


async def terminated(stack: Stack) -> str:
    id = await waiting(stack)
    await stack.client.temporal.get_workflow_handle(id).terminate("a test")
    return id


async def undo_terminated(stack: Stack) -> str:
    """The undo of a completed saga is terminated at its first compensation, which another session holds up."""
    id = await completed(stack, "undo-held")

    async def is_undoing() -> bool:
        steps = {step["id"]: step["compensation"] for step in (await stack.client.show(id))["steps"]}
        return steps["more"] is not None and steps["more"]["state"] == "RUNNING"

    with psycopg.connect(stack.url) as other:
        other.execute("lock table held_back in access exclusive mode")
        await stack.client.undo(id, reason="a test", who="ada")
        await until(is_undoing)
        await stack.client.temporal.get_workflow_handle(f"{id}{UNDO_SUFFIX}").terminate("a test")
    return id


async def undo_deleted(stack: Stack) -> str:
    """The run of the undo of a completed saga is deleted in its second compensation, which another session holds up."""
    id = await completed(stack, "undo-half")

    async def is_undone_in_part() -> bool:
        return stack.sql("select 1 from saga_guard where saga_id = %s and op = 'undo'", id) != []

    with psycopg.connect(stack.url) as other:
        other.execute("lock table held_half in access exclusive mode")
        await stack.client.undo(id, reason="a test", who="ada")
        await until(is_undone_in_part)
        await run_changes.delete_run(stack.client.temporal, f"{id}{UNDO_SUFFIX}")
    stack.sql("update saga_guard set created_at = created_at - 120 where saga_id = %s", id)
    return id


async def delete_run(stack: Stack, id: str) -> None:
    run = (await stack.client.locator.locate(id)).run
    assert run is not None
    await run_changes.delete_run(stack.client.temporal, id, run.run.run_id)
    make_older(stack, id)


def make_older(stack: Stack, id: str) -> None:
    """Younger rows than a minute are those of a saga that has just been started."""
    for table in ("saga_guard", "saga_request"):
        stack.sql(f"update {table} set created_at = created_at - 120 where saga_id = %s", id)


async def deleted_with_lock(stack: Stack) -> str:
    id = await waiting(stack, "locked", key="of the deleted")
    await delete_run(stack, id)
    return id


async def deleted(stack: Stack) -> str:
    id = await waiting(stack)
    await delete_run(stack, id)
    return id


async def command_of_deleted(stack: Stack) -> str:
    """The participant has replied that the command is done."""
    id = await stack.start("commanding")
    reply = (
        "update saga_request set outcome = 'done', data = 'null' where saga_id = %s and token is not null returning 1"
    )

    async def has_reply() -> bool:
        return stack.sql(reply, id) != []

    await until(has_reply)
    await stack.waits(id)
    await delete_run(stack, id)
    return id


async def reset_and_deleted(stack: Stack) -> str:
    """The run before the reset is still there."""
    id = await waiting(stack)
    await run_changes.reset_run(stack.client.temporal, id)
    await stack.waits(id)
    await delete_run(stack, id)
    return id


async def second_generation_deleted(stack: Stack) -> str:
    """The run of the first generation is still there, and so is its row in the ledger."""
    id = await waiting(stack, client=stack.ledger)
    await stack.ledger.cancel(id)

    async def is_undone() -> bool:
        return await stack.state(id, stack.ledger) == "COMPENSATED"

    await until(is_undone)
    await stack.ledger.start("waiting", {}, id=id, again=True)
    await stack.waits(id, stack.ledger)
    await delete_run(stack, id)
    return id


async def refused_twice(stack: Stack) -> str:
    """A client starts the deleted saga again, twice: a worker refuses what it has put into the header."""
    temporal, queue = stack.client.temporal, stack.client.project.settings.temporal.task_queue
    id = await waiting(stack)
    await delete_run(stack, id)
    header = {DEFINITION_HEADER: eager_start.json_payload("of nobody")}
    for _ in range(2):
        await eager_start.start(temporal, "waiting", id, queue, eager_start.json_payload({}), header, eager=False)
        with pytest.raises(WorkflowFailureError):
            await temporal.get_workflow_handle(id).result()
    return id


async def parent_deleted(stack: Stack) -> str:
    """The only effect of the deleted saga is that of a nested one, which has completed."""
    id = await stack.start("nesting")
    await stack.waits(id)
    await delete_run(stack, id)
    make_older(stack, f"{id}/inner")
    return id


async def undo_held_by_nobody(stack: Stack) -> str:
    """The run is deleted, and the id of its undo belongs to one that any client has started, where no worker polls."""
    id = await waiting(stack)
    await stack.client.temporal.start_workflow("waiting", {}, id=f"{id}{UNDO_SUFFIX}", task_queue="billing")
    await run_changes.delete_run(stack.client.temporal, id)
    make_older(stack, id)
    return id


async def start_instead(
    stack: Stack,
    id: str,
    workflow: str,
    input: object,
    queue: str | None = None,
    memo: Mapping[str, object] | None = None,
) -> None:
    """Start a workflow as any other client of the namespace does, which ends the run that has the id."""
    await stack.client.temporal.start_workflow(
        workflow,
        input,
        id=id,
        task_queue=queue or stack.client.project.settings.temporal.task_queue,
        memo=memo,
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
    )


async def held_by_another_workflow(stack: Stack) -> str:
    id = await waiting(stack)
    await start_instead(stack, id, "billing", {}, "billing")
    make_older(stack, id)
    return id


async def claimed_by_another_workflow(stack: Stack) -> str:
    id = await waiting(stack)
    await start_instead(stack, id, "billing", {}, "billing", {STARTED_AT_MEMO: time.time() - 60})
    make_older(stack, id)
    return id


async def used_by_another_saga(stack: Stack) -> str:
    id = await waiting(stack, "locked", key="of the replaced")
    await start_instead(stack, id, "other", {})

    async def has_ended() -> bool:
        return await stack.state(id) == "COMPLETED"

    await until(has_ended)
    make_older(stack, id)
    return id


async def replaced(stack: Stack) -> str:
    id = await waiting(stack, n=1)
    await start_instead(stack, id, "waiting", {"n": 2})

    async def is_parked() -> bool:
        return await stack.state(id) == "PARKED"

    await until(is_parked)
    return id


async def completed_id_used_again(stack: Stack) -> str:
    """The saga has completed, and any client may start its id again, here with another input."""
    id = await waiting(stack, n=1)
    await stack.client.signal(id, "go")
    await ends(stack, id, "COMPLETED")
    await start_instead(stack, id, "waiting", {"n": 2})
    await ends(stack, id, "PARKED")
    return id


async def ends(stack: Stack, id: str, state: str, client: Client | None = None) -> None:
    async def has_ended() -> bool:
        return await stack.state(id, client) == state

    await until(has_ended)


async def completed_and_used_by_another_saga(stack: Stack) -> str:
    """The ledger has the end of the first saga, whose run is deleted."""
    id = await waiting(stack, client=stack.ledger)
    await stack.ledger.signal(id, "go")
    await ends(stack, id, "COMPLETED", stack.ledger)
    await is_in_ledger(stack, id, "COMPLETED")
    await run_changes.delete_run(stack.client.temporal, id)
    await start_instead(stack, id, "other", {}, stack.ledger.project.settings.temporal.task_queue)
    await ends(stack, id, "COMPLETED", stack.ledger)
    make_older(stack, id)
    return id


async def undone_and_deleted(stack: Stack) -> str:
    """The ledger has the end of the undo, whose run is deleted."""
    id = await stack.start("held-by-nobody", client=stack.ledger)
    await ends(stack, id, "COMPLETED", stack.ledger)
    await stack.ledger.undo(id, reason="a test", who="ada")
    await ends(stack, id, "COMPENSATED", stack.ledger)
    await is_in_ledger(stack, id, "COMPENSATED")
    await run_changes.delete_run(stack.client.temporal, f"{id}{UNDO_SUFFIX}")
    make_older(stack, id)
    return id


async def is_in_ledger(stack: Stack, id: str, state: str) -> None:
    async def is_written() -> bool:
        return (await stack.ledger.locator.ledger.states([id])).get(id) == state

    await until(is_written)


async def lock_left(stack: Stack) -> str:
    id = await waiting(stack, "lock-alone")
    await stack.client.temporal.get_workflow_handle(id).terminate("a test")
    stack.sql("update saga_lock set acquired_at = acquired_at - 172800 where saga_id = %s", id)
    return id


async def prepared(stack: Stack) -> str:
    return await waiting(stack, "prepared")


async def foreign_prepared(stack: Stack) -> str:
    stack.sql("begin; insert into effects values ('nobody', 'x'); prepare transaction 'of-nobody'")
    return "of-nobody"


async def held_event(stack: Stack) -> str:
    """A held event for which the relay has asked in vain for half a day."""
    id = await waiting(stack, "held")
    stack.sql("update saga_outbox set checks = 15, note = 'the saga cannot be asked' where saga_id = %s", id)
    return id


async def completed(stack: Stack, saga: str) -> str:
    id = await stack.start(saga)

    async def ended() -> bool:
        return await stack.state(id) == "COMPLETED"

    await until(ended)
    return id


async def refused_event(stack: Stack) -> str:
    """An event that the broker has refused."""
    id = await completed(stack, "emitting")
    stack.sql("update saga_outbox set status = 'REFUSED', note = 'the topic is closed' where saga_id = %s", id)
    return id


async def unpublished_event(stack: Stack) -> str:
    """No relay runs, and two minutes have passed."""
    id = await completed(stack, "emitting")
    stack.sql("update saga_outbox set created_at = created_at - 120 where saga_id = %s", id)
    return id


async def exhausted(stack: Stack) -> str:
    id = await completed(stack, "notifying")

    async def ended() -> bool:
        return [row["state"] for row in (await stack.client.show(id))["notifications"]] == ["EXHAUSTED"]

    await until(ended)
    return id


async def unserved_event(stack: Stack) -> str:
    """The last of the starts for an event was compensated, as the ones before it."""
    id, starter = f"given-up-{uuid.uuid4().hex[:12]}", await stack.client.starter("given-up")
    request = replace(await starter.check({}), redelivery={"intervals": [1.0], "passed": 1})
    await starter.start(request, id=id)

    async def recorded() -> bool:
        return bool((await stack.client.show(id)).get("redelivery", {}).get("unserved"))

    await until(recorded)
    return id


async def late_reply(stack: Stack) -> str:
    """A command that counts as rejected, until its participant replies after the end of the saga that it is done."""
    id = await stack.start("given-up")

    async def ended() -> bool:
        return await stack.state(id) == "COMPENSATED"

    await until(ended)
    stack.sql(
        "insert into saga_request (step_key, saga_id, step, generation, op, outcome, created_at, answered_at)"
        " values (%s, %s, 'ask', 1, 'do', 'done', 0, extract(epoch from now()))",
        f"{id}/ask",
        id,
    )
    return id


async def bulk_closed(stack: Stack) -> str:
    """A bulk workflow is closed between the first step and the second one, which another session holds up."""
    starter = await stack.ledger.starter("held-up")
    id = f"bulk-{stack.folder.name}"

    async def has_effect() -> bool:
        return bool(stack.sql("select 1 from saga_guard where saga_id = %s", id))

    with psycopg.connect(stack.url) as other:
        other.execute("lock table held_up in access exclusive mode")
        bulk = await starter.start_bulk([BulkRow(id, starter.make_request({}))])
        await until(has_effect)
        await bulk.terminate("a test")
    return id
