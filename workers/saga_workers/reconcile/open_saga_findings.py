"""The findings about sagas with open effects that no run will undo or complete.

Those of terminated runs are found by the comparison of effects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from saga_spark.reconcile.extracts import ReconciliationScope
from saga_spark.reconcile.findings import RESUMED, Finding, resume_command
from saga_workers.location.locator import Locator
from saga_workers.location.traces import nested_sagas
from saga_workers.stuck.guard_scan import MAX_SCANNED, GuardScan
from saga_workers.stuck.open_sagas import find_left_members, find_lost
from saga_workers.stuck.verdict import OpenSaga
from sagas.settings import Settings


async def find_lost_runs(
    locator: Locator, settings: Settings, scope: ReconciliationScope, suspects: Collection[str]
) -> list[Finding]:
    """The sagas of the scope without a run that ends their open effects: those that hold something, those of the
    ``suspects``, those nested in the saga of the scope, and without one all others that the guards know. Raises
    SagaError, RPCError.
    """
    asked = set(suspects)
    if scope.saga_id is not None:
        asked |= {scope.saga_id, *await nested_sagas(settings, scope.saga_id)}
    if scope.saga_id is None:
        scan = GuardScan(settings)
        while not scan.complete:
            asked.update(await scan.find_suspects(locator, MAX_SCANNED, since=scope.since or 0.0))
    lost = await find_lost(locator, settings, scope.saga_id, suspects=sorted(asked)[:MAX_SCANNED])
    return [_finding_of(saga) for saga in lost]


def _finding_of(saga: OpenSaga) -> Finding:
    holds = "; ".join(saga.holds)
    if saga.verdict == "unreadable":
        return Finding("run_unreadable", saga_id=saga.saga_id, saga=saga.saga, details={"run": saga.holder})
    if saga.verdict == "undo deleted":
        state = None if saga.view is None else "COMPLETED"
        return Finding("undo_missing", saga_id=saga.saga_id, saga=saga.saga, state=state, details={"undo": holds})
    command = saga.resume if saga.is_resumed else ""
    if saga.verdict == "deleted":
        return Finding("run_missing", saga_id=saga.saga_id, saga=saga.saga, details={"holds": holds}, command=command)
    details = {"effects": holds} | ({"held_by": saga.holder} if saga.holder else {})
    return Finding("run_replaced", saga_id=saga.saga_id, saga=saga.saga, details=details, command=command)


async def find_left_claims(locator: Locator, connection: str, saga_id: str | None = None) -> list[Finding]:
    """The claims of bulk workflows that Temporal has closed or does not know. Raises LedgerUnavailable."""
    return [
        Finding(
            "claim_left",
            saga_id=member.claim.saga_id,
            saga=member.claim.saga,
            state="TERMINATED",
            place=f"{connection}.saga_claim",
            details={"bulk_workflow": member.bulk_id},
        )
        for member in await find_left_members(locator, saga_id=saga_id)
    ]


def with_one_remedy(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with one command for everything about a saga that is resumed, or whose undo is continued."""
    remedies = {
        finding.saga_id: finding.command or resume_command(finding.kind, finding.saga_id)
        for finding in findings
        if finding.kind in RESUMED and finding.saga_id is not None
    }
    return [
        replace(finding, command=remedies[finding.saga_id]) if finding.saga_id in remedies else finding
        for finding in findings
    ]
