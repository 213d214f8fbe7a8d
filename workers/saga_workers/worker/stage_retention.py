"""Cleans up the stage area of Spark steps, inside every `saga worker` of a project that has such steps."""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.database_errors import message_of
from saga_spark.settings import SparkSettings
from saga_spark.staging.stage_area import SagaLiveness, clean_up_stage, drop_undo_data
from sagas.errors import SagaError

log = logging.getLogger("saga.spark")

CLEANUP_INTERVAL = 20.0
"""Seconds between two rounds."""

_ENDED_FROM_OUTSIDE = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)


async def clean_stage_periodically(
    client: Client, databases: DatabaseConnections, settings: SparkSettings, *, undo_window: float
) -> None:
    """Clean up in rounds, forever; errors are logged. ``undo_window``: seconds for which a saga can be undone."""

    async def life_of(saga_id: str) -> SagaLiveness:
        try:
            status = (await client.get_workflow_handle(saga_id).describe()).status
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return "unknown"
            raise
        if status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW):
            return "open"
        return "terminated" if status in _ENDED_FROM_OUTSIDE else "over"

    assert settings.ledger is not None
    while True:
        try:
            engine = databases.engine(settings.ledger)
            await clean_up_stage(engine, settings, life_of)
            await drop_undo_data(engine, settings, before=time.time() - undo_window)
        except RPCError as error:
            log.warning("stage area not cleaned up, Temporal does not answer: %s", error.message)
        except (SagaError, SQLAlchemyError, OSError) as error:
            log.warning("stage area not cleaned up: %s", message_of(error))
        await asyncio.sleep(CLEANUP_INTERVAL)
