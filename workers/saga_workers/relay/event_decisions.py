"""Decisions of operators about single events, from the command line: a saga that answers decides about its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.entry_key import EntryKey
from saga_activities.messaging.outbox import HELD
from saga_workers.ledger.run_ledger import using_ledger
from saga_workers.location.locator import Locator
from saga_workers.relay.entry_status import SagaStatus, SagaUnreachable, entry_status, origin_of_entry, query_saga
from saga_workers.relay.undecided_events import MAX_UNANSWERED, EventDecision, decide_event, read_event
from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.databases import open_databases
from saga_workers.temporal.machine_query import verifying_keys
from saga_workers.temporal.temporal_client import connect
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.settings import Settings
from sagas.text.shell import saga_command

_DATABASE_TIMEOUT = 15.0


async def decide_in_any_outbox(
    settings: Settings, connection: str | None, event_id: str, decision: EventDecision, *, reason: str, who: str
) -> str:
    """Apply :func:`decide_event` to whichever outbox of the project has the event.

    Raises UsageError if none has it; RefusedError if there is nothing to decide, or the saga decides otherwise; and
    SagaError if a database does not answer.
    """
    databases = open_databases(settings, connection, 1)
    try:
        for name in databases.names():
            engine = databases.engine(name)
            async with _answering(settings, name):
                row = await read_event(engine, event_id)
            if row is None:
                continue
            if row.status == HELD:
                await _require_no_other_decision(settings, name, engine, row, decision)
            async with _answering(settings, name):
                message = await decide_event(engine, event_id, decision, reason=reason, who=who)
            if message is not None:
                return message
    finally:
        await databases.close()
    raise UsageError(
        f"no outbox has an event {event_id}", help="saga relay --status    lists the events that need an operator"
    )


@asynccontextmanager
async def _answering(settings: Settings, name: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_DATABASE_TIMEOUT):
            yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        what = f"the database of the connection {name} does not answer"
        raise unusable(settings.sql_connection(name), what, error) from error


async def _require_no_other_decision(
    settings: Settings, name: str, engine: AsyncEngine, event: Any, decision: EventDecision
) -> None:
    """Raise RefusedError for a held event that its saga decides about, unless the decision is the same."""
    address = EntryKey(event.saga_id, event.step, event.generation)
    async with _answering(settings, name):
        origin = await origin_of_entry(engine, address)
    try:
        async with using_ledger(settings) as ledger:
            locator = Locator(await connect(settings), ledger, keys=verifying_keys(settings))
            view = await query_saga(locator, event.saga_id)
        status = entry_status(view, event.step, event.generation, origin)
    except (SagaUnreachable, SagaError) as error:
        if event.checks < MAX_UNANSWERED:
            raise RefusedError(
                f"the saga {event.saga_id} decides about its held event, and cannot be asked now: {error}",
                help=f"when it has not answered for half a day, `{saga_command('relay', status=True)}` lists the event",
            ) from error
        status = SagaStatus("unknown")
    what = {"open": "is open", "committed": "has reached its commit point", "over": "has ended without reaching it"}
    agrees = {"committed": "release", "over": "drop", "unknown": decision}
    if agrees.get(status.kind) != decision:
        effect = {"open": "published at its commit point, or dropped", "committed": "published", "over": "dropped"}
        raise RefusedError(
            f"the saga {event.saga_id} {what[status.kind]}: its held event is {effect[status.kind]}",
            help=saga_command("show", event.saga_id),
        )
