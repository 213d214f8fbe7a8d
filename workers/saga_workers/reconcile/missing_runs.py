"""Sagas whose effects are open while no run of theirs will undo or complete them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from saga_spark.reconcile.findings import RESUMED, Finding
from saga_workers.location.deleted_run import DeletedRun
from saga_workers.location.deleted_runs import describe_deleted_run, find_deleted_runs, replaced_origin
from saga_workers.location.locator import Locator
from saga_workers.location.traces import MAX_SAGAS, guarded_effects, open_effects
from sagas.settings import Settings
from sagas.text.shell import saga_command


async def find_missing_runs(
    locator: Locator, settings: Settings, saga_id: str | None, suspects: Collection[str]
) -> list[Finding]:
    """The sagas without a run: those that hold something, and those of the ``suspects`` whose effects are open.

    Raises SagaError.
    """
    deleted = {saga.saga_id: saga for saga in await find_deleted_runs(locator, settings, saga_id)}
    for id in sorted(set(suspects) - deleted.keys())[:MAX_SAGAS]:
        if (saga := await describe_deleted_run(settings, await locator.locate(id))) is not None:
            deleted[id] = saga
    return [_missing(saga) for saga in deleted.values()]


def _missing(deleted: DeletedRun) -> Finding:
    return Finding(
        "run_missing", saga_id=deleted.saga_id, saga=deleted.saga, details={"holds": "; ".join(deleted.holds)}
    )


async def find_replaced_runs(locator: Locator, settings: Settings, replaced: Collection[str]) -> list[Finding]:
    """The sagas of ``replaced``, whose earlier run was terminated, that have open effects of another input.

    Raises SagaError.
    """
    findings = []
    for saga_id in sorted(replaced)[:MAX_SAGAS]:
        run = (await locator.within_temporal().locate(saga_id)).run
        effects = [effect for effect in await guarded_effects(settings, saga_id) if effect.open]
        origin = None if run is None else await replaced_origin(locator.temporal, run, effects)
        if origin is not None:
            findings.append(
                Finding("run_replaced", saga_id=saga_id, saga=origin.saga, details={"effects": open_effects(effects)})
            )
    return findings


def with_one_remedy(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with `saga resume` as the command of everything about a saga that it starts again."""
    resumed = {finding.saga_id for finding in findings if finding.kind in RESUMED}
    return [
        replace(finding, command=saga_command("resume", finding.saga_id)) if finding.saga_id in resumed else finding
        for finding in findings
    ]
