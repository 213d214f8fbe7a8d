"""The findings about sagas with open effects that no run will undo or complete.

Those of terminated runs are found by the comparison of effects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from saga_spark.reconcile.findings import RESUMED, Finding
from saga_workers.location.locator import Locator
from saga_workers.location.traces import MAX_SAGAS
from saga_workers.stuck.open_sagas import find_deleted, find_left_members
from saga_workers.stuck.verdict import replaced_saga
from sagas.settings import Settings
from sagas.text.shell import saga_command


async def find_missing_runs(
    locator: Locator, settings: Settings, saga_id: str | None, suspects: Collection[str]
) -> list[Finding]:
    """The sagas without a run: those that hold something, and those of the ``suspects`` whose effects are open.

    Raises SagaError.
    """
    deleted = await find_deleted(locator, settings, saga_id, suspects=sorted(suspects)[:MAX_SAGAS])
    return [
        Finding("run_missing", saga_id=saga.saga_id, saga=saga.saga, details={"holds": "; ".join(saga.holds)})
        for saga in deleted
    ]


async def find_replaced_runs(locator: Locator, settings: Settings, replaced: Collection[str]) -> list[Finding]:
    """The sagas of ``replaced``, whose earlier run was terminated, that have open effects of another input.

    Raises SagaError.
    """
    findings = []
    for saga_id in sorted(replaced)[:MAX_SAGAS]:
        run = (await locator.within_temporal().locate(saga_id)).run
        saga = None if run is None else await replaced_saga(locator, settings, run)
        if saga is not None:
            details = {"effects": "; ".join(saga.holds)}
            findings.append(Finding("run_replaced", saga_id=saga_id, saga=saga.saga, details=details))
    return findings


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
    """The findings, with `saga resume` as the command of everything about a saga that it starts again."""
    resumed = {finding.saga_id for finding in findings if finding.kind in RESUMED}
    return [
        replace(finding, command=saga_command("resume", finding.saga_id)) if finding.saga_id in resumed else finding
        for finding in findings
    ]
