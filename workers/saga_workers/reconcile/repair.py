"""`--repair`: repairs the classes that need no operator, through the same paths that sagas take themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.database_clock import time_of
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_spark import output_records
from saga_spark.manifest import Target
from saga_spark.output_records import clean_up_sink
from saga_spark.reconcile.extracts import ReconciliationScope
from saga_spark.reconcile.findings import RESUMED, resume_command
from saga_spark.reconcile.output_checks import read_output_records
from saga_spark.settings import SparkSettings, spark_settings
from saga_spark.staging.stage_area import StageArea
from saga_workers.location.locator import Locator
from saga_workers.reconcile.ledger_check import write_row
from saga_workers.reconcile.reconciliation import output_record_connection
from saga_workers.relay.entry_status import SagaUnreachable, entry_status, origin_of_entry, query_saga
from saga_workers.runtime.databases import open_command_engine, open_databases
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.kept_locks import kept_locks
from saga_workers.views.locks import list_orphans, release_orphan
from sagas.errors import RefusedError, SagaError
from sagas.settings import Settings
from sagas.text.shell import saga_command

_ATTEMPT_TIMEOUT = 30.0


async def repair_findings(
    locator: Locator, settings: Settings, findings: Sequence[Mapping[str, Any]], *, who: str
) -> list[dict[str, Any]]:
    """Repair what is safe; returns one row per saga or output: ``saga_id``, ``class``, ``done`` (a message)."""
    done: list[dict[str, Any]] = []
    resumed = {finding["saga_id"]: finding for finding in findings if finding["class"] in RESUMED}
    for saga_id, finding in resumed.items():
        command = finding.get("command") or resume_command(finding["class"], saga_id)
        message = f"needs an operator, and nothing of it is released: {command}"
        done.append({"saga_id": saga_id, "class": finding["class"], "done": message})
    findings = [finding for finding in findings if finding["saga_id"] not in resumed]
    continued = list(dict.fromkeys(_saga_ids_of_class(findings, "open_effects")))
    for saga_id in continued:
        message = await _unless_refused(continue_saga(locator, saga_id, who))
        done.append({"saga_id": saga_id, "class": "open_effects", "done": message})
    for saga_id in _saga_ids_of_class(findings, "ledger_differs"):
        message = await _unless_refused(write_row(locator, saga_id))
        done.append({"saga_id": saga_id, "class": "ledger_differs", "done": message})
    # The effects of a saga whose bulk workflow was closed are a finding, and its claim is another one.
    for saga_id in (id for id in _saga_ids_of_class(findings, "claim_left") if id not in continued):
        message = await _unless_refused(continue_saga(locator, saga_id, who))
        done.append({"saga_id": saga_id, "class": "claim_left", "done": message})
    held = [finding for finding in findings if finding["class"] == "event_held"]
    if held:
        out = {finding["row"]["event_id"] for finding in findings if finding["class"] == "event_unclaimed"}
        done += await _resolve_held_events(locator, settings, held, out)
    for entry in findings:
        if entry["class"] == "lock_left":
            message = await _release_lock(locator, settings, entry["saga_id"], entry["details"]["holder"])
            done.append({"saga_id": entry["saga_id"], "class": "lock_left", "done": message})
    staged = [finding for finding in findings if finding["class"] == "staged_left"]
    spark = spark_settings(settings)
    connection = output_record_connection(settings, spark)
    if staged and connection is not None:
        engine = open_command_engine(connection)
        try:
            for entry in staged:
                target = Target(entry["saga_id"], entry["step"], entry["generation"], entry["details"]["output"])
                message = await _discard_staged(engine, spark, target)
                done.append({"saga_id": target.saga_id, "class": "staged_left", "done": message})
        finally:
            await engine.dispose()
    return done


def _saga_ids_of_class(findings: Iterable[Mapping[str, Any]], kind: str) -> list[str]:
    return [finding["saga_id"] for finding in findings if finding["class"] == kind and finding["saga_id"]]


async def _unless_refused(repair: Awaitable[str]) -> str:
    try:
        return await repair
    except RefusedError as error:
        return f"not repaired: {error.message}"


async def _resolve_held_events(
    locator: Locator,
    settings: Settings,
    findings: Sequence[Mapping[str, Any]],
    published_ids: Collection[str],
) -> list[dict[str, Any]]:
    """Check back with each saga about the events that it has left HELD, as the relay does.

    Events in ``published_ids`` are in their topic already and would be published twice; they are left to an operator.
    """
    entries: dict[tuple[str, EntryKey], list[str]] = {}
    for finding in findings:
        address = EntryKey(finding["saga_id"], finding["step"], finding["generation"])
        entries.setdefault((finding["place"].partition(".")[0], address), []).append(finding["row"]["event_id"])
    done: list[dict[str, Any]] = []
    databases = open_databases(settings, None, 1)
    try:
        for (name, address), events in entries.items():
            try:
                view = await query_saga(locator, address.saga_id)
                origin = await origin_of_entry(databases.guard(name).engine, address)
                answer = entry_status(view, address.entry, address.generation, origin)
            except SagaUnreachable as error:
                raise SagaError(str(error)) from error
            if any(event in published_ids for event in events):
                message = "needs an operator: an event is in its topic although it is held"
            elif answer.kind in ("committed", "over"):
                message = await _release_or_drop(databases.guard(name), address, committed=answer.kind == "committed")
            else:
                decide = f"{saga_command('relay', release=events[0], reason='…')} (or --drop)"
                message = f"needs an operator: {answer.reason or 'the saga is still running'}: {decide}"
            done.append({"saga_id": address.saga_id, "class": "event_held", "done": message})
    finally:
        await databases.close()
    return done


async def _release_lock(locator: Locator, settings: Settings, saga_id: str, holder: str) -> str:
    """Release the locks of a saga that is over, unless its effects are still to be undone."""
    if holder not in {request.holder for request in await list_orphans(locator, settings)}:
        return "its locks have been released meanwhile"
    if (kept := await kept_locks(locator, settings, saga_id)) is not None:
        return f"not released: {kept.why}; continue it first: {kept.command}"
    problem = await release_orphan(locator.temporal, settings, saga_id, holder)
    return "its locks are released" if problem is None else f"not released: {problem}"


async def _release_or_drop(guard: Guard, address: EntryKey, *, committed: bool) -> str:
    outcome = await guard.decide_held_events(
        address,
        committed=committed,
        scheduled_at=await time_of(guard.engine),
        deadline=time.time() + _ATTEMPT_TIMEOUT,
    )
    if outcome.kind != "done":
        return f"not repaired: {outcome.failure.message if outcome.failure else outcome.kind}"
    return f"the held events of {address.entry} are {'released' if committed else 'dropped'}"


async def _discard_staged(engine: AsyncEngine, settings: SparkSettings, target: Target) -> str:
    """Discard staged output as the undo of the step does. A visible publication is left alone."""
    rows = [
        row
        for row in await read_output_records(engine, ReconciliationScope(saga_id=target.saga_id))
        if row.target == target
    ]
    for row in rows:
        if row.state in ("STAGING", "STAGED"):
            async with engine.begin() as connection:
                table = output_records.outputs.c
                mine = (
                    table.saga_id == target.saga_id,
                    table.step == target.step,
                    table.generation == target.generation,
                    table.output == target.output,
                    table.epoch == row.epoch,
                    table.state == row.state,
                )
                # A higher epoch fences a job that still works on it.
                change = update(output_records.outputs).where(*mine).values(state="DISCARDED", epoch=row.epoch + 1)
                if (await connection.execute(change)).rowcount != 1:
                    return f"not repaired: the output of {target.step} has changed meanwhile"
        await asyncio.to_thread(clean_up_sink, row, settings)
    await asyncio.to_thread(StageArea(settings.stage).remove_generation, target)
    return f"the staged output of {target.step} was removed"
