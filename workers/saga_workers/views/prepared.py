"""Sagas whose prepared transactions have held their locks for too long, with the locks: others wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.guard.two_phase.prepared import list_prepared
from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.databases import open_command_engine
from sagas.definition.model import Definition
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings

_TIMEOUT = 15.0


def two_phase_connections(definitions: Mapping[str, Definition]) -> set[str]:
    """The connections whose databases have to prepare transactions."""
    steps = (step.do for definition in definitions.values() for step in definition.steps)
    return {do.connection for do in steps if do.two_phase and do.connection is not None}


async def stuck_prepared(project: Project) -> dict[str, list[str]]:
    """The reasons of each saga with a prepared transaction of a step of this project that is stuck.

    Raises SagaError if a definition or a database cannot be read.
    """
    return await _read(project.settings, two_phase_connections(project.definitions), None)


async def with_stuck_prepared(settings: Settings, view: SagaView) -> SagaView:
    """The view with these reasons in ``stuck``. Raises SagaError if a database cannot be read."""
    connections = [sql_connection.name for sql_connection in settings.sql_connections()]
    return add_reasons(view, await _read(settings, connections, view.id))


def add_reasons(view: SagaView, prepared: Mapping[str, Sequence[str]]) -> SagaView:
    """The view with the reasons of its prepared transactions after the others."""
    reasons = prepared.get(view.id, ())
    return replace(view, stuck=(*(view.stuck or ()), *reasons)) if reasons else view


async def _read(settings: Settings, connections: Collection[str], saga_id: str | None) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name in sorted(connections):
        connection = settings.sql_connection(name)
        engine = open_command_engine(connection)
        try:
            async with asyncio.timeout(_TIMEOUT):
                prepared = await list_prepared(engine, saga_id)
        except (SQLAlchemyError, OSError) as error:
            raise unusable(connection, f"the prepared transactions of {name} could not be read", error) from error
        finally:
            await engine.dispose()
        for transaction in prepared:
            is_stuck = transaction.is_older_than(connection.prepared_warn_after)
            if transaction.entry_key is not None and is_stuck:
                reason = f"{transaction.entry_key.entry} has a prepared transaction on {name}: {transaction.describe()}"
                reasons.setdefault(transaction.entry_key.saga_id, []).append(reason)
    return reasons
