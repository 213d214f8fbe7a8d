"""The views of sagas that a bulk workflow runs: found by their claims, asked for in the bulk workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from temporalio.client import Client as Temporal

from saga_activities.ledger.claims import Claim
from saga_workers.temporal.temporal_runs import RunDescription, describe_run
from saga_workers.views.answering import NoAnswer, Workers
from saga_workers.views.run_facts import close_reason, iso_time, web_ui_link
from sagas.protocol.saga_view import ReasonView, SagaView

_ENDED = ("COMPLETED", "COMPENSATED", "RESIDUE")

VANISHED = "Temporal has no run of its bulk workflow any more"


async def view_in_bulk(
    temporal: Temporal, claim: Claim, *, web_ui: str | None, timeout: timedelta, workers: Workers
) -> SagaView:
    """The view of a claimed saga, from its bulk workflow. Without an answer: what the claim has, with ``incomplete``.

    TERMINATED: the bulk workflow was closed before the saga ended.
    """
    assert claim.bulk_id is not None
    described = await describe_run(temporal, claim.bulk_id)
    bare = claimed_view(temporal, claim, described, web_ui=web_ui)
    if described is None:
        return bare
    try:
        answer = await workers.query(described, "saga", timeout, claim.saga_id)
    except NoAnswer as error:
        view = replace(bare, incomplete=f"{error}, so its bulk workflow cannot be queried")
    else:
        # The bulk workflow does not know its sagas before it has claimed all of them.
        view = bare if answer is None else SagaView.from_json(answer)
        view = replace(view, labels=bare.labels, web_ui=bare.web_ui, bulk_workflow=claim.bulk_id)
    if described.run.running or view.state in _ENDED:
        return view
    reason = await close_reason(temporal, described.run)
    if view.reason:
        reason = replace(reason, details={"before": view.reason.to_json()})
    return replace(view, state="TERMINATED", reason=reason, ended_at=iso_time(described.run.close_time), can_undo=False)


def claimed_view(temporal: Temporal, claim: Claim, described: RunDescription | None, *, web_ui: str | None) -> SagaView:
    """What the claim and the description of its bulk workflow (None: Temporal has none) tell without a worker."""
    assert claim.bulk_id is not None
    run = None if described is None else described.run
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
        return replace(view, reason=ReasonView(kind="terminated", message=VANISHED), incomplete=VANISHED)
    link = web_ui_link(web_ui, temporal.namespace, claim.bulk_id, run.run_id)
    ended_at = None if runs else iso_time(run.close_time)
    return replace(view, web_ui=link, ended_at=ended_at)


@dataclass(frozen=True, slots=True)
class ClaimedSaga:
    """A claim with its bulk workflow; None if Temporal has none."""

    claim: Claim
    bulk: RunDescription | None


async def describe_bulk_workflows(
    temporal: Temporal, claims: Sequence[Claim], *, without: Collection[str] = ()
) -> list[ClaimedSaga]:
    """The claims, each with its bulk workflow, which is asked for once."""
    wanted = [claim for claim in claims if claim.saga_id not in without]
    ids = list(dict.fromkeys(claim.bulk_id for claim in wanted if claim.bulk_id is not None))
    runs = dict(zip(ids, await asyncio.gather(*(describe_run(temporal, id) for id in ids)), strict=True))
    return [ClaimedSaga(claim, runs[claim.bulk_id]) for claim in wanted if claim.bulk_id is not None]
