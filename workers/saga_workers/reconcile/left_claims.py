"""Sagas of bulk workflows that were closed before they ended, and how they are continued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from saga_activities.ledger.records import Claim, RunFilter
from saga_activities.ledger.rows import make_record
from saga_spark.reconcile.findings import Finding
from saga_workers.interventions import start_undo
from saga_workers.location.locator import Locator
from saga_workers.location.traces import guarded_effects
from saga_workers.reconcile.recheck import SETTLE_TIME
from saga_workers.temporal.machine_query import query_machine, verifying_keys
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers, describe_run, no_poller_message
from saga_workers.views.bulk_view import BULK_DELETED, claimed_view
from saga_workers.views.run_facts import close_reason
from saga_workers.views.saga_view import QUERY_TIMEOUT, read_view
from sagas.errors import RefusedError
from sagas.machine.machine import Machine
from sagas.protocol.payloads import UNDO_SUFFIX, compress_state, unpack_state
from sagas.protocol.saga_view import UNVERIFIED, SagaView
from sagas.text.shell import saga_command

MAX_CLAIMS = 100_000
UNDO_TIMEOUT = 120.0
"""Seconds to wait for one saga; it then continues by itself."""

_ROWS_AT_ONCE = 500


async def find_left_claims(locator: Locator, connection: str, saga_id: str | None = None) -> list[Finding]:
    """The claims of bulk workflows that Temporal has closed or does not know. Raises LedgerUnavailable."""
    return [
        Finding(
            "claim_left",
            saga_id=list_left_claim.saga_id,
            saga=list_left_claim.saga,
            state="TERMINATED",
            place=f"{connection}.saga_claim",
            details={"bulk_workflow": list_left_claim.bulk_id},
        )
        for list_left_claim in await list_left_claims(locator, saga_id)
    ]


async def list_left_claims(locator: Locator, saga_id: str | None = None) -> list[Claim]:
    """The claims of bulk workflows that Temporal has closed or does not know."""
    ids = await locator.ledger.bulk_ids()
    described = await asyncio.gather(*(describe_run(locator.temporal, id) for id in ids))
    closed = [id for id, bulk in zip(ids, described, strict=True) if bulk is None or not bulk.run.running]
    if not closed:
        return []
    claims = await locator.ledger.bulk_claims(RunFilter(), MAX_CLAIMS, closed)
    left_claims = [claim for claim in claims if saga_id in (None, claim.saga_id)]
    if left_claims:
        await asyncio.sleep(SETTLE_TIME)
        still = await locator.ledger.claims([claim.saga_id for claim in left_claims])
        left_claims = [claim for claim in left_claims if still.get(claim.saga_id) == claim]
    return left_claims


async def continue_claimed(locator: Locator, saga_id: str, who: str, reason: str) -> str:
    """Continue such a saga where it stood: backward before its commit point, forward after it.

    Returns what was done, as a message for operators. Raises RefusedError if nothing can be done.
    """
    temporal = locator.temporal
    member = (await locator.locate(saga_id)).member
    if member is None:
        return "it has ended meanwhile"
    claim = member.claim
    if member.bulk is None:
        return await _release_or_advise(locator, claim)
    run = member.bulk.run
    if run.running:
        raise RefusedError("its bulk workflow is running")
    if not await count_pollers(temporal, run.task_queue):
        raise RefusedError(no_poller_message(run.task_queue))
    try:
        state = await _machine(locator, run, saga_id)
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError) as error:
        raise RefusedError(f"its bulk workflow cannot be queried: {error}") from error
    if state is None or state["started_at"] is None:
        await locator.ledger.release_unstarted(claim)
        return "its claim is deleted, because it had not begun; start it again"
    if state["ended_at"] is not None:
        return await _record_end(locator, claim, state, run)
    try:
        await start_undo(temporal, saga_id, claim.saga, run.task_queue, reason=reason, who=who)
    except RefusedError:
        return "it is already being undone"
    return await describe_continued(locator, await _wait(locator, saga_id), saga_id)


async def _release_or_advise(locator: Locator, claim: Claim) -> str:
    """For a saga whose bulk workflow was deleted: a bulk workflow has no other effects than those in guards."""
    if locator.settings is None or await guarded_effects(locator.settings, claim.saga_id):
        raise RefusedError(f"{BULK_DELETED}; start it again with `{saga_command('resume', claim.saga_id)}`")
    await locator.ledger.release_unstarted(claim)
    return "its claim is deleted, because it had no effect; start it again"


async def describe_continued(locator: Locator, view: SagaView, saga_id: str) -> str:
    """Return what has become of a saga that was continued in a new run. Raises RefusedError if that was refused."""
    if view.is_unverified:
        return f"it is {view.state} {UNVERIFIED}"
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
    await locator.ledger.write([record])
    return f"its row is written as {view.state}"


async def _wait(locator: Locator, saga_id: str) -> SagaView:
    """The view when it has ended or is parked, or after the timeout."""
    until = time.monotonic() + UNDO_TIMEOUT
    while True:
        view = await read_view(locator, saga_id)
        if view.ended_at is not None or view.waits_for_a_person or time.monotonic() > until:
            return view
        await asyncio.sleep(0.5)


async def sagas_of_bulk_workflows(
    locator: Locator, ids: list[str], *, horizon: float, until: float
) -> AsyncIterator[SagaView]:
    """The views of those of the ids that Temporal has no run of, because a bulk workflow runs or has run them.

    ``horizon`` and ``until``: see :class:`ReconcileInput`; a saga that ended after ``until`` cannot be judged.
    """
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        part = ids[start : start + _ROWS_AT_ONCE]
        claims = [claim for claim in (await locator.ledger.claims(part)).values() if claim.bulk_id is not None]
        rows = await locator.ledger.find_all(part)
        for row in rows.values():
            ended = None if row.view.ended_at is None else datetime.fromisoformat(row.view.ended_at).timestamp()
            if ended is not None and ended >= horizon:
                late = "it ended during the reconciliation" if ended >= until else row.view.incomplete
                yield replace(row.view, incomplete=late)
        for member in await locator.members(claims, without=rows):
            view = claimed_view(locator.temporal, member, web_ui=None)
            yield replace(view, incomplete="it was not asked for")
