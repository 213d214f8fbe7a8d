"""Clears the stage area: what a saga that is over has left there.

Undoing a published output needs its ledger row and the sink, never the stage; so nothing of what is deleted here can
be missed by an undo. What a terminated saga has staged is left to reconciliation: nobody has decided about it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark import ledger
from saga_spark.ledger import OutputRow
from saga_spark.publications import clean_sink, publication_of
from saga_spark.settings import SparkSettings
from saga_spark.sinks.registry import sink_for
from saga_spark.sinks.sink import Conflict
from saga_spark.stage_area import StageArea
from sagas.errors import Infrastructure, SagaError

log = logging.getLogger("saga.spark")

Life = Literal["open", "over", "terminated", "unknown"]
"""``unknown``: Temporal knows no such saga. It has forgotten it, or it is a saga of another namespace whose workers
keep their ledger in the same database."""
Decision = Literal["keep", "clear", "clear_sink_too"]
BATCH = 200


def decide(row: OutputRow, life: Life, now: float, retention: float) -> Decision:
    """What happens to the files of one output. Times in seconds."""
    if life in ("open", "terminated") or (life == "unknown" and now - row.updated_at < retention):
        return "keep"
    match row.state:
        case "PUBLISHED" | "RETRACTED" | "DISCARDED":
            return "clear"
        case "QUARANTINED":
            # People look at what was refused.
            return "clear_sink_too" if now - row.updated_at >= retention else "keep"
        case "STAGING":
            return "clear_sink_too"
        case _:
            # Staged, and the saga is over without having said what becomes of it: reconciliation shows it.
            return "keep"


async def clean(
    engine: AsyncEngine, settings: SparkSettings, life_of: Callable[[str], Awaitable[Life]]
) -> list[OutputRow]:
    """One round; returns what was cleared. ``life_of`` tells whether a saga is over. Trouble with one output is one
    line in the log, and the next round tries again."""
    lives: dict[str, Life] = {}
    cleared: list[OutputRow] = []
    kept = 0
    while rows := await _rows(engine, ledger.to_clean(BATCH, kept)):
        for row in rows:
            saga_id = row.target.saga_id
            if saga_id not in lives:
                lives[saga_id] = await life_of(saga_id)
            decision = decide(row, lives[saga_id], time.time(), settings.retention)
            if decision == "keep" or not await _clear(row, decision, settings):
                kept += 1
                continue
            async with engine.connect() as connection:
                # Where an attempt goes on nevertheless, the row waits for the next round.
                kept += (await connection.execute(ledger.cleaned(row.target, row.epoch))).rowcount == 0
            cleared.append(row)
    return cleared


async def _clear(row: OutputRow, decision: Decision, settings: SparkSettings) -> bool:
    """Delete the files of one output; False: there was trouble."""
    try:
        if decision == "clear_sink_too":
            await asyncio.to_thread(clean_sink, row, settings)
        await asyncio.to_thread(StageArea(settings.stage).remove_generation, row.target)
    except (OSError, SagaError, Infrastructure, Conflict) as error:
        log.warning("the stage of %s in %s was not cleared: %s", row.target.step, row.target.saga_id, error)
        return False
    return True


async def _rows(engine: AsyncEngine, query: Select[Any]) -> list[OutputRow]:
    async with engine.connect() as connection:
        return [OutputRow.read(row) for row in (await connection.execute(query)).mappings()]


async def forget(engine: AsyncEngine, settings: SparkSettings, *, before: float) -> list[OutputRow]:
    """Let the sinks drop what they keep only for an undo, of everything that was settled ``before`` that time (seconds
    since the epoch): the guards have forgotten it, so no undo of it is possible. Returns what was forgotten."""
    done = []
    for row in await _rows(engine, ledger.to_forget(before, BATCH)):
        try:
            if row.manifest is not None:
                publication = publication_of(row)
                await asyncio.to_thread(sink_for(publication.output.kind, settings).forget, publication)
        except (OSError, SagaError, Infrastructure, Conflict) as error:
            log.warning("%s keeps what undoing %s would need: %s", row.place, row.target.saga_id, error)
            continue
        async with engine.connect() as connection:
            await connection.execute(ledger.forgotten(row.target))
        done.append(row)
    return done
