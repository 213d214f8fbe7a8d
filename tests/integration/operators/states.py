"""The states in which an effect is open or a saga cannot end, how each is made, and what shows it.

docs/how-to/find-stuck.md has them in a table, which is compared with this list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import psycopg
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from sagas.protocol.payloads import UNDO_SUFFIX
from tests.helpers import run_changes
from tests.helpers.waiting import until
from tests.integration.operators.troubled_project import Stack, project_of

Maker = Callable[[Stack], Awaitable[str]]


@dataclass(frozen=True)
class Alert:
    name: str
    labels: Mapping[str, str]


def alert(name: str, /, **labels: str) -> Alert:
    return Alert(name, labels)


@dataclass(frozen=True)
class State:
    """One state. ``make`` gives the id of its saga.

    ``stuck``: part of the reason in `saga list --stuck`; ``doctor``: the check; ``reconcile``: the class of the
    finding; ``metric``: the metric that shows it; None where nothing does. ``alert``: the one that fires, with some
    of its labels. ``config``: the project.
    """

    name: str
    make: Maker
    stuck: str | None
    doctor: str
    reconcile: str | None = None
    metric: str | None = None
    alert: Alert | None = None
    config: str = "saga.toml"


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
    """Nothing listens at the address of its connection."""
    return await stack.start("held-by-breaker", client=stack.ledger)


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


async def delete_run(stack: Stack, id: str) -> None:
    await run_changes.delete_run(stack.client.temporal, id)

    async def gone() -> bool:
        return (await stack.client.locator.locate(id)).kind == "unknown"

    await until(gone)
    # Younger rows than a minute are those of a saga that has just been started.
    stack.sql("update saga_guard set created_at = created_at - 120 where saga_id = %s", id)


async def deleted_with_lock(stack: Stack) -> str:
    id = await waiting(stack, "locked", key="of the deleted")
    await delete_run(stack, id)
    return id


async def deleted(stack: Stack) -> str:
    id = await waiting(stack)
    await delete_run(stack, id)
    return id


async def replaced(stack: Stack) -> str:
    id = await waiting(stack, n=1)
    queue = stack.client.project.settings.temporal.task_queue
    policy = WorkflowIDConflictPolicy.TERMINATE_EXISTING
    await stack.client.temporal.start_workflow("waiting", {"n": 2}, id=id, task_queue=queue, id_conflict_policy=policy)

    async def is_parked() -> bool:
        return await stack.state(id) == "PARKED"

    await until(is_parked)
    return id


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


STATES = (
    State(
        "an undo is parked",
        undo_parked,
        "take is parked (undo)",
        "sagas",
        None,
        metric="saga_parked",
        alert=alert("SagaParked", saga="undo-parks", step="take"),
    ),
    State(
        "a step after the commit point is parked",
        step_parked,
        "ask is parked (do)",
        "sagas",
        None,
        metric="saga_parked",
        alert=alert("SagaParked", saga="pivot-passed", step="ask"),
    ),
    State(
        "a nested saga is parked",
        parent_blocked,
        "inner is blocked (do)",
        "sagas",
        None,
        metric="saga_parked",
        alert=alert("SagaParked", saga="undo-parks", step="take"),
    ),
    State(
        "a saga runs longer than its warn_after",
        overdue,
        "overdue",
        "sagas",
        None,
        metric="saga_overdue",
        alert=alert("SagaOverdue", saga="late"),
    ),
    State(
        "an operation fails again and again",
        failing,
        "the last failure: ",
        "sagas",
        None,
        metric="saga_step_attempts_total",
        alert=alert("SagaOperationFails", saga="failing", step="fly", op="do"),
    ),
    State(
        "no worker polls the task queue of a step",
        unserved_queue,
        "fly waits: no worker",
        "sagas",
        metric="saga_pollers",
        alert=alert("SagaNobodyPolls", task_queue="nobody-polls", kind="steps"),
    ),
    State(
        "no worker polls the task queue of a saga",
        without_worker,
        "no worker polls",
        "workers",
        metric="saga_pollers",
        alert=alert("SagaNobodyPolls", kind="sagas"),
        config="idle.toml",
    ),
    State("its workflow task fails", failing_task, "its workflow task fails", "sagas", config="broken.toml"),
    State("a saga is paused", paused, "paused by", "sagas"),
    State(
        "its connection, or all sagas of its name, are paused",
        paused_by_name,
        "paused with all sagas of held-by-name",
        "pauses",
        metric="saga_paused",
        alert=alert("SagaPaused", kind="saga", name="held-by-name"),
        config="ledger.toml",
    ),
    State(
        "the circuit breaker of its connection is open",
        held_by_breaker,
        "held by the circuit breaker of the connection crm",
        "circuit breakers",
        metric="saga_circuit_breaker",
        alert=alert("SagaCircuitBreakerOpen", connection="crm"),
        config="ledger.toml",
    ),
    State(
        "a saga waits for a lock of a stuck saga",
        waits_for_a_parked_saga,
        "waits for",
        "sagas",
        metric="saga_lock_wait_oldest_seconds",
        alert=alert("SagaLockWait", connection="shop"),
    ),
    State(
        "a run was terminated",
        terminated,
        "terminated with open effects",
        "sagas",
        "open_effects",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="terminated"),
    ),
    State(
        "the undo of a completed saga was terminated",
        undo_terminated,
        "terminated with open effects",
        "sagas",
        "open_effects",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="undo-held", why="terminated"),
    ),
    State(
        "a run was deleted, and its saga holds locks, events or transactions",
        deleted_with_lock,
        "locks on shop: start it again",
        "sagas",
        "run_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="locked", why="deleted"),
    ),
    State(
        "a run was deleted, and its saga has open effects alone",
        deleted,
        "open effects: take on shop: start it again",
        "sagas",
        "run_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="deleted"),
    ),
    State(
        "a run was replaced by one with another input",
        replaced,
        "key used with other arguments",
        "sagas",
        "run_replaced",
        metric="saga_parked",
        alert=alert("SagaParked", saga="waiting"),
    ),
    State(
        "a closed saga without effects holds locks",
        lock_left,
        None,
        "locks",
        "lock_left",
        metric="saga_lock_oldest_seconds",
        alert=alert("SagaLockOld", connection="shop"),
    ),
    State("a prepared transaction is old", prepared, "has a prepared transaction on shop", "sagas"),
    State(
        "a prepared transaction belongs to no saga",
        foreign_prepared,
        None,
        "prepared transaction of shop",
        "prepared_unowned",
    ),
    State(
        "the relay cannot decide about a held event",
        held_event,
        None,
        "events of shop",
        None,
        metric="saga_outbox_unanswered",
        alert=alert("SagaEventsUndecided", connection="shop"),
    ),
    State(
        "the broker refuses an event",
        refused_event,
        None,
        "events of shop",
        None,
        metric="saga_outbox_events",
        alert=alert("SagaEventsRefused", connection="shop"),
    ),
    State(
        "no relay publishes",
        unpublished_event,
        None,
        "relay of shop",
        None,
        metric="saga_outbox_oldest_seconds",
        alert=alert("SagaEventsLate", connection="shop"),
    ),
    State(
        "a notification is exhausted",
        exhausted,
        "is EXHAUSTED after",
        "sagas",
        None,
        metric="saga_notifications_total",
        alert=alert("SagaNotificationExhausted", saga="notifying"),
    ),
    State(
        "a bulk workflow was closed",
        bulk_closed,
        "its bulk workflow was closed",
        "sagas",
        "claim_left",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="held-up", why="claim left"),
        config="ledger.toml",
    ),
    State(
        "a participant has done a command whose saga has ended without it", late_reply, None, "replies", "late_reply"
    ),
)
