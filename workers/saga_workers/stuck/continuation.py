"""Sagas whose run, or bulk workflow, was closed from outside: continued where they stood.

That is backward before the commit point and forward after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from saga_activities.ledger.records import Claim
from saga_activities.ledger.rows import make_record
from saga_workers.location.location import BulkMember
from saga_workers.location.locator import Locator
from saga_workers.location.served_runs import is_on_own_queue
from saga_workers.location.traces import open_effects, recorded_effects
from saga_workers.stuck.counted_children import require_uncounted
from saga_workers.stuck.verdict import RUN_DELETED
from saga_workers.temporal.holding_runs import holder_in_words
from saga_workers.temporal.machine_query import query_machine, verifying_keys
from saga_workers.temporal.saga_runs import closed_before_begun
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers, describe_run, no_poller_message
from saga_workers.temporal.unanswered_resets import require_answered_reset
from saga_workers.undo_start import ClosedRun, start_undo
from saga_workers.views.bulk_view import BULK_DELETED
from saga_workers.views.run_facts import close_reason
from saga_workers.views.saga_view import QUERY_TIMEOUT, read_view
from sagas.errors import RefusedError
from sagas.machine.machine import Machine
from sagas.protocol.payloads import UNDO_SUFFIX, compress_state, unpack_state
from sagas.protocol.saga_view import SagaView
from sagas.text.shell import saga_command

_REASON = "the run was terminated with open effects"

_UNDO_TIMEOUT = 120.0
"""Seconds to wait for one saga; it then continues by itself."""


async def continue_saga(locator: Locator, saga_id: str, who: str, reason: str = "") -> str:
    """Continue the saga, and wait for its end, or for up to two minutes. ``reason`` is recorded.

    Returns what was done, as a message for operators. Raises RefusedError if nothing can be done.
    """
    reason = reason or _REASON
    member = (await locator.locate(saga_id)).member
    if member is not None:
        return await _continue_member(locator, member, who, reason)
    within_temporal = locator.within_temporal()
    described = (await within_temporal.locate(saga_id)).run
    if described is None:
        raise RefusedError(RUN_DELETED)
    if described.never_accepted:
        raise closed_before_begun(saga_id)
    run = described.run
    if not is_on_own_queue(locator, run):
        raise RefusedError(
            f"{holder_in_words(run)} has the id {saga_id}, and its undo would be on that queue, which is not this "
            "project's",
            help="if it is a saga of another project, continue it there",
        )
    await require_uncounted(locator, run)
    await require_answered_reset(locator.temporal, run, locator.keys)
    closed = (await close_reason(locator.temporal, run)).message or "" if run.ended_from_outside else ""
    return await _start_undo(within_temporal, run, run.id, run.workflow_type, who, reason, closed)


async def _start_undo(
    locator: Locator, run: RunInfo, saga_id: str, saga: str, who: str, reason: str, closed: str = ""
) -> str:
    if not await count_pollers(locator.temporal, run.task_queue):
        raise RefusedError(no_poller_message(run.task_queue))
    try:
        undoes = ClosedRun(run.run_id, closed)
        await start_undo(locator, saga_id, saga, run.task_queue, reason=reason, who=who, undoes=undoes)
    except RefusedError:
        return "it is already being undone"
    return await _describe_continued(locator, await _wait(locator, saga_id), saga_id)


async def _continue_member(locator: Locator, member: BulkMember, who: str, reason: str) -> str:
    """Continue a saga of a bulk workflow that was closed."""
    claim = member.claim
    if member.bulk is None:
        return await _release_or_advise(locator, claim)
    run = member.bulk.run
    if run.running:
        raise RefusedError("its bulk workflow is running")
    if not await count_pollers(locator.temporal, run.task_queue):
        raise RefusedError(no_poller_message(run.task_queue))
    try:
        state = await _machine(locator, run, claim.saga_id)
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError) as error:
        raise RefusedError(f"its bulk workflow cannot be queried: {error}") from error
    if state is None or state["started_at"] is None:
        await locator.ledger.release_unstarted(claim)
        return "its claim is deleted, because it had not begun; start it again"
    if state["ended_at"] is not None:
        return await _record_end(locator, claim, state, run)
    return await _start_undo(locator, run, claim.saga_id, claim.saga, who, reason)


async def _release_or_advise(locator: Locator, claim: Claim) -> str:
    """For a saga whose bulk workflow was deleted: a bulk workflow has no other effects than those in guards."""
    effects = [] if locator.settings is None else await recorded_effects(locator.settings, claim.saga_id)
    if locator.settings is None or open_effects(effects):
        raise RefusedError(f"{BULK_DELETED}; start it again with `{saga_command('resume', claim.saga_id)}`")
    await locator.ledger.release_unstarted(claim)
    if effects:
        return "its claim is deleted, because none of its effects is open"
    return "its claim is deleted, because it had no effect; start it again"


async def _describe_continued(locator: Locator, view: SagaView, saga_id: str) -> str:
    """Return what has become of a saga that was continued in a new run. Raises RefusedError if that was refused."""
    if view.is_unverified:
        return f"it is {view.state} {view.incomplete}"
    match view.state:
        case "COMPENSATED":
            return "undone; it is COMPENSATED"
        case "COMPENSATING":
            return "being undone; it is COMPENSATING"
        case "PARKED" if view.phase == "backward":
            return f"undone in part, and waits for an operator: {saga_command('show', saga_id)}"
        case "PARKED":
            return f"continued, and waits for an operator: {saga_command('show', saga_id)}"
        case "TERMINATED":
            refused = await describe_run(locator.temporal, saga_id + UNDO_SUFFIX)
            reason = view.reason if refused is None else await close_reason(locator.temporal, refused.run)
            raise RefusedError(f"it could not be continued: {(reason and reason.message) or 'the reason is unknown'}")
    return f"continued; it is {view.state}"


async def _machine(locator: Locator, run: RunInfo, saga_id: str) -> Mapping[str, object] | None:
    keys = verifying_keys(locator.settings)
    packed = await query_machine(locator.temporal, (run.id, run.run_id), keys, member=saga_id, timeout=QUERY_TIMEOUT)
    return None if packed is None else unpack_state(packed)


async def _record_end(locator: Locator, claim: Claim, state: Mapping[str, object], run: RunInfo) -> str:
    """Write the row of a saga that had ended, which its bulk workflow could not write any more.

    Its view is built from the state of the machine: a view that the bulk workflow answers has no signature.
    """
    view = Machine.restore(state).view()
    record = make_record(
        view.to_json(),
        saga_id=claim.saga_id,
        labels=claim.labels,
        updated_at=run.close_time or datetime.now(UTC),
        input_digest=claim.input_digest,
        machine=compress_state(state) if view.can_undo else None,
    )
    if record is None:
        raise RefusedError("it has not started")
    await locator.ledger.write([replace(record, bulk_id=run.id)])
    return f"its row is written as {view.state}"


async def _wait(locator: Locator, saga_id: str) -> SagaView:
    """The view when it has ended or is parked, or after the timeout."""
    until = time.monotonic() + _UNDO_TIMEOUT
    while True:
        view = await read_view(locator, saga_id)
        if view.ended_at is not None or view.waits_for_a_person or time.monotonic() > until:
            return view
        await asyncio.sleep(0.5)
