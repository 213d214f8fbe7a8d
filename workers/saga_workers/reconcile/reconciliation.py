"""One reconciliation: reads the input, compares it, rechecks the findings and builds the report."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saga_activities.concurrency import end_tasks
from saga_spark.reconcile.extracts import ReconciliationScope
from saga_spark.reconcile.findings import MISMATCH_KINDS, Finding, count_text
from saga_spark.reconcile.output_checks import (
    check_output,
    closed_publications,
    collect_evidence,
    find_orphans,
    lacks_guard_row,
    orphan_findings,
    partial_publications,
    read_output_records,
    without_published_effects,
)
from saga_spark.reconcile.reconcile_spec import effect_tables
from saga_spark.reconcile.work_folder import open_work_folder
from saga_spark.settings import SparkSettings, spark_settings
from saga_workers.location.locator import Locator
from saga_workers.reconcile.current_views import current_view
from saga_workers.reconcile.late_replies import find_late_replies
from saga_workers.reconcile.ledger_check import check_ledger
from saga_workers.reconcile.open_saga_findings import (
    find_left_claims,
    find_lost_runs,
    with_one_remedy,
)
from saga_workers.reconcile.prepared_transactions import find_committed_outside, find_unowned
from saga_workers.reconcile.recheck import published_since, recheck
from saga_workers.reconcile.reconcile_input import ReconcileInput, read_input
from saga_workers.runtime.databases import open_command_engine
from saga_workers.views.locks import list_orphans
from sagas.definition.times import format_timestamp
from sagas.settings import Settings, SqlConnection
from sagas.settings.reconcile import EffectTable

if TYPE_CHECKING:
    from saga_spark.reconcile.topic_extract import TopicsRead


MAX_FINDINGS = 10_000
"""Maximum number of findings of each class in a report; all are counted."""


async def reconcile(
    locator: Locator,
    settings: Settings,
    scope: ReconciliationScope,
    *,
    on_progress: Callable[[str], None] = lambda what: None,
    require_saga: bool = True,
) -> dict[str, Any]:
    """The report as JSON (see docs/how-to/reconcile.md). ``on_progress`` is called with what begins.

    ``require_saga``: raise UsageError for the id of one saga if nobody knows it, neither Temporal nor what was read. A
    repair may have removed the last trace of it. Raises SagaError.
    """
    from saga_spark.reconcile.extract_comparison import ExtractComparison

    spark = spark_settings(settings)
    effects = effect_tables(settings)
    async with open_work_folder(settings.dev_folder / "reconcile") as folder:
        on_progress("reading the sagas and the databases")
        material = await read_input(locator, settings, effects, folder, scope)
        on_progress("reading the topics")
        topics = await asyncio.to_thread(read_topics, settings, folder, scope, material)
        if topics is not None:
            material.rows["records of topics"] = topics.compared
        one_saga = scope.saga_id is not None
        comparison = ExtractComparison(folder, effects, topics, scope.since, material.horizon, one_saga)
        all_counts, findings = await comparison.find(MAX_FINDINGS, lambda what: on_progress(f"comparing {what}"))
    counts = Counter(all_counts)
    news = await published_since(settings, findings)
    findings = [finding for finding in findings if finding not in news]
    counts.subtract(finding.kind for finding in news)
    on_progress("checking outputs, locks, prepared transactions and the ledger")
    outputs, locks, unowned, committed, replies, recorded = await _all_of(
        _check_outputs(locator, settings, spark, scope, material, findings),
        _check_locks(locator, settings, scope),
        find_unowned(locator, settings, scope.saga_id, material.rows),
        find_committed_outside(locator, settings, scope.saga_id),
        find_late_replies(locator, settings, material.states, scope.since),
        _check_ledger(locator, settings, scope, material),
    )
    shown = without_published_effects(findings, outputs)
    counts.subtract(finding.kind for finding in findings if finding not in shown)
    findings = shown
    other_findings = [*outputs, *locks, *unowned, *committed, *replies]
    suspects = material.replaced | {
        finding.saga_id
        for finding in (*findings, *other_findings)
        if finding.saga_id and finding.state in (None, "UNKNOWN")
    }
    suspects |= {finding.saga_id for finding in recorded if finding.saga_id and finding.state == "COMPLETED"}
    on_progress("looking for sagas without a run")
    other_findings += await find_lost_runs(locator, settings, scope, suspects)
    counts.update(finding.kind for finding in (*other_findings, *recorded))
    findings = [*findings, *other_findings, *recorded[:MAX_FINDINGS]]
    on_progress(f"reading the sagas of {count_text(len(findings))} again")
    findings, gone = await recheck(locator, settings, findings, material.states, effects)
    findings = with_one_remedy(findings)
    counts.subtract(finding.kind for finding in gone)
    if require_saga and scope.saga_id is not None and not (findings or gone or _has_read_one(material, effects)):
        await _require_known(locator, scope.saga_id)
    return _report(scope, material, findings, {kind: count for kind, count in counts.items() if count > 0})


def _has_read_one(inputs: ReconcileInput, effects: Sequence[EffectTable]) -> bool:
    """Return whether anything of the one saga in scope was read. Rows linked by results are read of all sagas."""
    shared = {f"{effect.connection}.{effect.name}" for effect in effects if effect.binding == "result"}
    return any(count for source, count in inputs.rows.items() if source not in shared)


async def _require_known(locator: Locator, saga_id: str) -> None:
    """Raises UsageError, as `saga show` does, for an id that neither Temporal nor the ledger knows."""
    location = await locator.locate(saga_id)
    if location.home is None and location.undo is None:
        raise await locator.unknown_saga(location.saga_id)


async def _all_of(*checks: Coroutine[Any, Any, list[Finding]]) -> list[list[Finding]]:
    """The findings of independent checks, which run concurrently. The first error ends all of them."""
    tasks = [asyncio.ensure_future(check) for check in checks]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


def output_record_connection(settings: Settings, spark: SparkSettings) -> SqlConnection | None:
    """The connection of the output records of Spark steps; None without one."""
    return None if spark.ledger is None else settings.sql_connection(spark.ledger)


async def _check_outputs(
    locator: Locator,
    settings: Settings,
    spark: SparkSettings,
    scope: ReconciliationScope,
    inputs: ReconcileInput,
    compared: Sequence[Finding] = (),
) -> list[Finding]:
    """The findings about outputs. ``compared``: those of the comparison of the sagas and the guards."""
    # Of these sagas the guard, and with it the output records, may have been restored to an earlier state.
    suspects = {finding.saga_id for finding in compared if lacks_guard_row(finding) and finding.saga_id}
    limited = scope.saga_id is not None or scope.since is not None
    connection = output_record_connection(settings, spark)
    if connection is None:
        return []
    engine = open_command_engine(connection)
    try:
        rows = await read_output_records(engine, scope)
        all_rows = await read_output_records(engine, ReconciliationScope()) if limited and suspects else rows
    finally:
        await engine.dispose()
    inputs.rows["outputs"] = len(rows)
    states: dict[str, str] = dict(inputs.states)
    for saga_id in {row.target.saga_id for row in rows} - states.keys():
        if (view := await current_view(locator, saga_id)) is not None:
            states[saga_id] = view.state
    evidence = [await asyncio.to_thread(collect_evidence, row, spark) for row in rows]
    findings = [
        finding for output in evidence if (finding := check_output(output, states.get(output.row.target.saga_id)))
    ]
    known_since = 0.0 if scope.saga_id is not None else inputs.horizon
    inputs.decided = closed_publications([row for row in rows if row.updated_at >= known_since])
    named = {finding.saga_id for finding in findings}
    others = [output for output in evidence if output.row.target.saga_id not in named]
    findings += await asyncio.to_thread(partial_publications, others, states, spark)
    if suspects or not limited:
        orphans = await asyncio.to_thread(find_orphans, all_rows, spark, suspects if limited else None)
        findings += orphan_findings(orphans, {**inputs.states, **states})
    return findings


async def _check_locks(locator: Locator, settings: Settings, scope: ReconciliationScope) -> list[Finding]:
    """The locks that no running saga will release."""
    if settings.lock_connection is None:
        return []
    return [
        Finding(
            "lock_left",
            request.owner,
            place=f"{settings.lock_connection}.{'saga_lock_wait' if request.waits else 'saga_lock'}",
            details={
                "holder": request.holder,
                "keys": ", ".join(request.keys),
                "since": format_timestamp(request.since),
            },
        )
        for request in await list_orphans(locator, settings)
        if scope.saga_id in (None, request.owner)
    ]


async def _check_ledger(
    locator: Locator, settings: Settings, scope: ReconciliationScope, inputs: ReconcileInput
) -> list[Finding]:
    connection = settings.ledger.connection
    if connection is None or not locator.ledger.configured:
        return []
    claims = await find_left_claims(locator, connection, scope.saga_id)
    claimed = {finding.saga_id for finding in claims}
    states = {saga_id: state for saga_id, state in inputs.states.items() if saga_id not in claimed}
    return [*claims, *await check_ledger(locator.ledger, connection, states)]


def _report(
    scope: ReconciliationScope, inputs: ReconcileInput, findings: Sequence[Finding], counts: Mapping[str, int]
) -> dict[str, Any]:
    order = list(MISMATCH_KINDS)
    return {
        "consistent": not counts and not inputs.missing_keys,
        "saga": scope.saga_id,
        "since": format_timestamp(scope.since),
        "until": format_timestamp(inputs.started_at),
        "read": {"sagas": 0, **inputs.rows},
        "counts": {kind: counts[kind] for kind in order if kind in counts},
        "missing_keys": dict(inputs.missing_keys),
        "decided": inputs.decided,
        "findings": [finding.to_json() for finding in sorted(findings, key=lambda finding: order.index(finding.kind))],
        "seconds": round(time.time() - inputs.started_at, 1),
    }


def read_topics(
    settings: Settings, folder: Path, scope: ReconciliationScope, inputs: ReconcileInput
) -> TopicsRead | None:
    """Read the topics of the outboxes into the folder; None if there is no Kafka, or no event for it. Blocks.

    Raises SagaError if Kafka does not answer.
    """
    if settings.kafka.bootstrap_servers is None:
        return None
    from saga_spark.reconcile import topic_extract

    return topic_extract.read_topics(settings.kafka, folder, scope, inputs.started_at, inputs.readers)
