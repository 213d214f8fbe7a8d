"""The views of sagas that a bulk workflow runs: found by their claims, asked for in the bulk workflow."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from temporalio.client import Client as Temporal

from saga_workers.location.location import BulkMember
from saga_workers.views.answering import NO_VIEW, Unqueryable, Workers
from saga_workers.views.run_facts import close_reason, iso_time, web_ui_link
from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.saga_view import ReasonView, SagaView

_ENDED = ("COMPLETED", "COMPENSATED", "RESIDUE")

BULK_DELETED = "Temporal has no run of its bulk workflow any more"


async def view_in_bulk(
    temporal: Temporal, member: BulkMember, *, web_ui: str | None, timeout: timedelta, workers: Workers
) -> SagaView:
    """The view of a member, from its bulk workflow. Without an answer: what the claim has, with ``incomplete``.

    TERMINATED: the bulk workflow was closed before the saga ended.
    """
    described = member.bulk
    bare = claimed_view(temporal, member, web_ui=web_ui)
    if described is None:
        return bare
    try:
        answer = await workers.query_view(described, timeout, member.claim.saga_id)
    except Unqueryable as error:
        view = replace(bare, incomplete=f"{error}, so its bulk workflow cannot be queried")
    else:
        # The bulk workflow does not know its sagas before it has claimed all of them.
        unreadable = replace(bare, incomplete=NO_VIEW)
        told = None if answer.document is None else read_foreign_view(answer.document, member.claim.saga_id)
        view = bare if answer.document is None else answer.marked(told) if told else unreadable
        view = replace(view, labels=bare.labels, web_ui=bare.web_ui, bulk_workflow=member.bulk_id)
    if described.run.running or view.state in _ENDED:
        return view
    reason = await close_reason(temporal, described.run)
    if view.reason:
        reason = replace(reason, details={"before": view.reason.to_json()})
    return replace(view, state="TERMINATED", reason=reason, ended_at=iso_time(described.run.close_time), can_undo=False)


def claimed_view(temporal: Temporal, member: BulkMember, *, web_ui: str | None) -> SagaView:
    """Return what the claim and the description of its bulk workflow tell without a worker."""
    claim = member.claim
    run = None if member.bulk is None else member.bulk.run
    runs = run is not None and run.running
    view = SagaView(
        id=claim.saga_id,
        saga=claim.saga,
        state="RUNNING" if runs else "TERMINATED",
        labels=dict(claim.labels),
        started_at=iso_time(claim.claimed_at),
        bulk_workflow=claim.bulk_id,
    )
    if run is None:
        return replace(view, reason=ReasonView(kind="terminated", message=BULK_DELETED), incomplete=BULK_DELETED)
    link = web_ui_link(web_ui, temporal.namespace, member.bulk_id, run.run_id)
    ended_at = None if runs else iso_time(run.close_time)
    return replace(view, web_ui=link, ended_at=ended_at)
