"""The clean-up of the stage area after a saga has ended.

Undoing a published output needs only its output record and the sink, so no file deleted here is missed by an undo.
Staged output of a terminated saga stays, because its fate is undecided: reconciliation reports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.database_clock import time_of
from saga_spark import output_records
from saga_spark.output_records import OutputRow, clean_up_sink, publication_of
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import CommitConflict, sink_for
from saga_spark.staging.stage_area import StageArea
from sagas.errors import InfrastructureError, SagaError

log = logging.getLogger("saga.spark")

SagaLiveness = Literal["open", "over", "terminated", "unknown"]
"""``unknown``: Temporal does not know the saga. It is past retention, or it belongs to another namespace whose workers
keep their output records in the same database."""
CleanUpDecision = Literal["keep", "clear", "clear_sink_too"]
CLEAN_UP_BATCH = 200


def decide_clean_up(row: OutputRow, liveness: SagaLiveness, now: float, retention: float) -> CleanUpDecision:
    """Return what happens to the files of one output. Times are in seconds since the epoch, ``retention`` is in
    seconds.
    """
    if liveness in ("open", "terminated") or (liveness == "unknown" and now - row.updated_at < retention):
        return "keep"
    match row.state:
        case "PUBLISHED" | "REVERTED" | "CLOSED" | "DISCARDED":
            return "clear"
        case "QUARANTINED":
            # Operators inspect rejected output during the retention.
            return "clear_sink_too" if now - row.updated_at >= retention else "keep"
        case "STAGING":
            return "clear_sink_too"
        case _:
            # Staged, and the saga ended without deciding about it: reconciliation reports it.
            return "keep"


async def clean_up_stage(
    engine: AsyncEngine, settings: SparkSettings, liveness_of: Callable[[str], Awaitable[SagaLiveness]]
) -> list[OutputRow]:
    """Run one round and return the rows that were cleared. ``liveness_of`` reports whether a saga has ended.

    An error with one output is logged as one line, and the next round retries it.
    """
    now = await time_of(engine)
    liveness: dict[str, SagaLiveness] = {}
    cleared: list[OutputRow] = []
    kept = 0
    while rows := await _select_rows(engine, output_records.select_to_clean_up(CLEAN_UP_BATCH, kept)):
        for row in rows:
            saga_id = row.target.saga_id
            if saga_id not in liveness:
                liveness[saga_id] = await liveness_of(saga_id)
            decision = decide_clean_up(row, liveness[saga_id], now, settings.retention)
            if decision == "keep" or not await _clean_up_output(row, decision, settings):
                kept += 1
                continue
            async with engine.connect() as connection:
                # If an attempt has started meanwhile, the row waits for the next round.
                kept += (await connection.execute(output_records.set_cleaned_up(row.target, row.epoch))).rowcount == 0
            cleared.append(row)
    return cleared


async def _clean_up_output(row: OutputRow, decision: CleanUpDecision, settings: SparkSettings) -> bool:
    """Delete the files of one output; False if that failed."""
    try:
        if decision == "clear_sink_too":
            await asyncio.to_thread(clean_up_sink, row, settings)
        await asyncio.to_thread(StageArea(settings.stage).remove_generation, row.target)
    except (OSError, SagaError, InfrastructureError, CommitConflict) as error:
        log.warning("staged output not cleaned up: %s", error, extra=_log_fields(row))
        return False
    return True


def _log_fields(row: OutputRow) -> dict[str, Any]:
    return {"context": {"saga": row.saga, "saga_id": row.target.saga_id, "step": row.target.step}}


async def _select_rows(engine: AsyncEngine, query: Select[Any]) -> list[OutputRow]:
    async with engine.connect() as connection:
        return [OutputRow.from_row(row) for row in (await connection.execute(query)).mappings()]


async def drop_undo_data(engine: AsyncEngine, settings: SparkSettings, *, before: float) -> list[OutputRow]:
    """Drop what the sinks keep only for an undo of outputs settled before ``before`` (seconds since the epoch).

    The guards have forgotten those sagas, so no undo is possible any more. Returns the rows that were processed.
    """
    done = []
    for row in await _select_rows(engine, output_records.select_undo_data_to_drop(before, CLEAN_UP_BATCH)):
        try:
            if row.manifest is not None:
                publication = publication_of(row)
                await asyncio.to_thread(sink_for(publication.output.kind, settings).drop_undo_data, publication)
        except (OSError, SagaError, InfrastructureError, CommitConflict) as error:
            log.warning("undo data in %s not dropped: %s", row.place, error, extra=_log_fields(row))
            continue
        async with engine.connect() as connection:
            await connection.execute(output_records.set_undo_data_dropped(row.target))
        done.append(row)
    return done
