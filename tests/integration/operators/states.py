"""The states in which an effect is open or a saga cannot end, and what shows each of them.

docs/how-to/find-stuck.md has them in a table, which is compared with this list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tests.integration.operators.situations import (
    bulk_closed,
    claimed_by_another_workflow,
    command_of_deleted,
    completed_and_used_by_another_saga,
    completed_id_used_again,
    deleted,
    deleted_with_lock,
    exhausted,
    failing,
    failing_task,
    foreign_prepared,
    held_by_another_workflow,
    held_by_breaker,
    held_event,
    late_reply,
    lock_left,
    overdue,
    parent_blocked,
    parent_deleted,
    paused,
    paused_by_name,
    prepared,
    refused_event,
    refused_twice,
    replaced,
    reset_and_deleted,
    second_generation_deleted,
    step_parked,
    terminated,
    undo_deleted,
    undo_held_by_nobody,
    undo_parked,
    undo_terminated,
    undone_and_deleted,
    unpublished_event,
    unserved_event,
    unserved_queue,
    used_by_another_saga,
    waits_for_a_parked_saga,
    without_worker,
)
from tests.integration.operators.troubled_project import Stack

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
    of its labels. ``config``: the project. ``follows_ended``: an earlier saga with the id has ended, and its effects
    stay.
    """

    name: str
    make: Maker
    stuck: str | None
    doctor: str
    reconcile: str | None = None
    metric: str | None = None
    alert: Alert | None = None
    config: str = "saga.toml"
    follows_ended: bool = False


USED_AGAIN = "the id of a completed saga was started with another input"

START_AGAIN = "; no ledger tells whether it had ended: look at its effects, and if it had not, start it again"

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
    State(
        "its workflow task fails",
        failing_task,
        "its workflow task fails",
        "sagas",
        metric="saga_failing_tasks",
        alert=alert("SagaTaskFails", saga="waiting"),
        config="broken.toml",
    ),
    State(
        "a saga is paused",
        paused,
        "paused by",
        "sagas",
        metric="saga_paused_sagas",
        alert=alert("SagasPausedOneByOne", kind="operator"),
    ),
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
        "the run of the undo of a completed saga was deleted",
        undo_deleted,
        "Temporal has no run of its undo any more",
        "sagas",
        "undo_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="undo-half", why="undo deleted"),
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
        "open effects: take on shop" + START_AGAIN,
        "sagas",
        "run_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="deleted"),
    ),
    State(
        "a run was deleted, and its saga has only sent a command",
        command_of_deleted,
        "open effects: ask by kafka.request" + START_AGAIN,
        "sagas",
        "run_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="commanding", why="deleted"),
    ),
    State(
        "the newest run was deleted, and an earlier one of the same saga is there",
        reset_and_deleted,
        "open effects: take on shop" + START_AGAIN,
        "sagas",
        "run_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="deleted"),
    ),
    State(
        "the run of a second generation was deleted",
        second_generation_deleted,
        "open effects: take on shop: start it again",
        "sagas",
        "run_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="deleted"),
        config="ledger.toml",
    ),
    State(
        "a run was deleted, and each later start of its id was refused",
        refused_twice,
        "open effects: take on shop" + START_AGAIN,
        "sagas",
        "run_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="deleted"),
    ),
    State(
        "a run was deleted, and only sagas nested in it have effects",
        parent_deleted,
        "/inner: take on shop" + START_AGAIN,
        "sagas",
        "run_missing",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="unknown", why="deleted"),
    ),
    State(
        "a run was deleted, and no worker serves the one with the id of its undo",
        undo_held_by_nobody,
        "a run of waiting on the task queue billing has the id of its undo, and its own effects are open",
        "sagas",
        "run_replaced",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="replaced"),
    ),
    State(
        "a run was replaced by another workflow, which is open",
        held_by_another_workflow,
        "a run of billing on the task queue billing has its id, and its own effects are open",
        "sagas",
        "run_replaced",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="replaced"),
    ),
    State(
        "a run was replaced by another workflow, which claims an earlier start",
        claimed_by_another_workflow,
        "a run of billing on the task queue billing has its id, and its own effects are open",
        "sagas",
        "run_replaced",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="waiting", why="replaced"),
    ),
    State(
        "a run was replaced by another saga, which has ended",
        used_by_another_saga,
        "has had its id since, and its own effects are open",
        "sagas",
        "run_replaced",
        metric="saga_open_effects",
        alert=alert("SagaEffectsOpen", saga="locked", why="replaced"),
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
        USED_AGAIN,
        completed_id_used_again,
        "an earlier saga with its id has ended, so the effects of that one stay",
        "sagas",
        None,
        metric="saga_parked",
        alert=alert("SagaParked", saga="waiting"),
        follows_ended=True,
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
    State(
        "a prepared transaction is old",
        prepared,
        "has a prepared transaction on shop",
        "sagas",
        metric="saga_prepared_old",
        alert=alert("SagaPreparedOld", connection="shop", owner="saga"),
    ),
    State(
        "a prepared transaction belongs to no saga",
        foreign_prepared,
        None,
        "prepared transaction of shop",
        "prepared_unowned",
        metric="saga_prepared_old",
        alert=alert("SagaPreparedOld", connection="shop", owner="other"),
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
        "the event of a compensated saga is not served",
        unserved_event,
        "its event is not served: the last of 1 further starts was compensated",
        "sagas",
        None,
        metric="saga_redeliveries_total",
        alert=alert("SagaEventNotServed", saga="given-up"),
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

IN_ORDER: Mapping[str, Maker] = {
    "a completed saga whose run was deleted, and whose id another saga has used": completed_and_used_by_another_saga,
    "a saga that was undone, and the run of its undo deleted": undone_and_deleted,
}
"""Sagas that have ended, as the ledger says, although what Temporal has looks otherwise. Nothing may name them."""
