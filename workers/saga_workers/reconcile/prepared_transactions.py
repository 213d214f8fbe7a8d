"""Prepared transactions that no open saga will commit or roll back, and those that others have committed."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.guard.tables import guard_table
from saga_activities.guard.two_phase.prepared import PreparedTransaction, list_committed, list_prepared
from saga_spark.reconcile.findings import Finding
from saga_workers.location.locator import Locator
from saga_workers.location.traces import reading_tables
from saga_workers.reconcile.current_views import current_view, current_views
from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.databases import open_command_engine
from sagas.protocol.saga_view import FINAL_STATES
from sagas.settings import Settings


async def find_unowned(
    locator: Locator, settings: Settings, saga_id: str | None, read: dict[str, int]
) -> list[Finding]:
    """The findings of all connections, or only those of one saga; adds to ``read`` how many were read.

    A terminated run can go on from where it stopped, so its transaction is one of its open effects. Raises SagaError if
    a database does not answer.
    """
    findings = []
    for connection in settings.sql_connections():
        engine = open_command_engine(connection)
        try:
            prepared = await list_prepared(engine, saga_id)
        except (SQLAlchemyError, OSError) as error:
            what = f"the prepared transactions of {connection.name} could not be read"
            raise unusable(connection, what, error) from error
        finally:
            await engine.dispose()
        if prepared:
            read[f"{connection.name}.prepared"] = len(prepared)
        findings += [
            finding for each in prepared if (finding := await _judge(locator, connection.name, each)) is not None
        ]
    return findings


async def find_committed_outside(locator: Locator, settings: Settings, saga_id: str | None) -> list[Finding]:
    """The findings about effects that are committed although their saga has not decided it. Raises SagaError.

    On MySQL and MariaDB every account may commit every XA transaction, on PostgreSQL a superuser.
    """
    findings = []
    for connection in settings.sql_connections():
        async with reading_tables(connection, "the guard") as (engine, tables):
            if guard_table.name not in tables:
                continue
            committed = await list_committed(engine, saga_id)
        views = await current_views(locator, sorted({key.saga_id for key in committed}))
        for key in committed:
            view = views[key.saga_id]
            if view is not None and view.phase != "committed" and view.state in _UNDECIDED:
                findings.append(
                    Finding(
                        "committed_outside",
                        saga_id=key.saga_id,
                        saga=view.saga,
                        state=view.state,
                        step=key.entry,
                        generation=key.generation,
                        place=connection.name,
                    )
                )
    return findings


_UNDECIDED = ("RUNNING", "COMPENSATING", "PARKED", "COMPENSATED")
"""States in which no operator has accepted the effect, as in RESIDUE; that of a TERMINATED run is an open effect."""


async def _judge(locator: Locator, place: str, prepared: PreparedTransaction) -> Finding | None:
    """The finding about a prepared transaction; None if its saga is open, or another database has it."""
    row = {"id": prepared.id}
    details = {"age": prepared.age, "locks": list(prepared.locks), "rollback": prepared.rollback}
    key = prepared.entry_key
    if key is None:
        return Finding("prepared_unowned", place=place, row=row, details=details) if prepared.is_foreign else None
    view = await current_view(locator, key.saga_id)
    if view is not None and view.state not in FINAL_STATES:
        return None
    kind = "open_effects" if view is not None and view.state == "TERMINATED" else "prepared_unowned"
    return Finding(
        kind,
        saga_id=key.saga_id,
        saga=None if view is None else view.saga,
        state=None if view is None else view.state,
        step=key.entry,
        generation=key.generation,
        place=place,
        row=row,
        details=details,
    )
