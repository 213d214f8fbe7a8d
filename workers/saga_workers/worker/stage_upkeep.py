"""Cleans up the stage area of Spark steps, inside every `saga worker` of a project that has such steps."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy.exc import SQLAlchemyError
from temporalio.service import RPCError

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.database_errors import message_of
from saga_spark.settings import SparkSettings
from saga_spark.staging.stage_clean_up import SagaLiveness, clean_up_stage, drop_undo_data
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import state_of
from saga_workers.temporal.saga_runs import describe_saga_run
from saga_workers.temporal.server_time import ServerTime
from sagas.errors import SagaError

log = logging.getLogger("saga.spark")

CLEANUP_INTERVAL = 20.0
"""Seconds between two rounds."""


async def clean_stage_periodically(
    locator: Locator, databases: DatabaseConnections, settings: SparkSettings, *, undo_window: float
) -> None:
    """Clean up in rounds, forever; errors are logged. ``undo_window``: seconds for which a saga can be undone."""

    assert settings.ledger is not None
    server_time = ServerTime(locator.temporal)
    while True:
        try:
            engine = databases.engine(settings.ledger)
            await clean_up_stage(engine, settings, lambda saga_id: liveness_of(locator, saga_id))
            if (now := await server_time.now()) is not None:
                await drop_undo_data(engine, settings, before=now - undo_window)
        except RPCError as error:
            log.warning("stage area not cleaned up, Temporal does not answer: %s", error.message)
        except (SagaError, SQLAlchemyError, OSError) as error:
            log.warning("stage area not cleaned up: %s", message_of(error))
        await asyncio.sleep(CLEANUP_INTERVAL)


async def liveness_of(locator: Locator, saga_id: str) -> SagaLiveness:
    """The state of the newest run of a saga that was not refused. Raises RPCError if Temporal does not answer."""
    described = await describe_saga_run(locator.temporal, saga_id)
    if described is None:
        return "unknown"
    if described.run.running:
        return "open"
    return "terminated" if await state_of(locator, described.run) == "TERMINATED" else "over"
