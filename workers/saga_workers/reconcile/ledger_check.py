"""Compares the ledger with the sagas that Temporal has, and writes the rows that a killed worker has lost."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from datetime import datetime

from saga_activities.guard.entry_key import fits_guard_key
from saga_activities.ledger.records import RunRecord
from saga_activities.ledger.rows import make_record
from saga_spark.reconcile.findings import Finding
from saga_workers.ledger.run_ledger import SETTLE_TIME, RunLedger
from saga_workers.location.locator import Locator
from saga_workers.stuck.interrupted_undos import is_parked_undo
from saga_workers.stuck.verdict import RUN_DELETED, undo_again_command
from saga_workers.temporal.machine_query import read_machine
from saga_workers.temporal.root_starts import nested_root_start
from saga_workers.temporal.saga_input import first_input
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError
from sagas.protocol.payloads import compress_state, input_digest
from sagas.protocol.saga_view import SagaView

RECORDED_STATES = ("COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "PARKED")
"""The states in which a saga has a row. TERMINATED is written by reconciliation only: no worker sees it."""


async def check_ledger(ledger: RunLedger, connection: str, states: Mapping[str, str]) -> list[Finding]:
    """The sagas of Temporal (``states``) that the ledger does not have, or has in another state.

    Raises LedgerUnavailable.
    """
    wanted = {
        saga_id: state for saga_id, state in states.items() if state in RECORDED_STATES and fits_guard_key(saga_id)
    }
    differing = await differing_states(ledger, wanted)
    return [
        Finding(
            "ledger_differs",
            saga_id=saga_id,
            state=wanted[saga_id],
            place=f"{connection}.saga_run",
            details={"ledger": recorded},
        )
        for saga_id, recorded in differing.items()
    ]


async def differing_states(ledger: RunLedger, states: Mapping[str, str]) -> dict[str, str | None]:
    """The state in the ledger, or None, of the sagas for which it stays another one than in ``states``.

    Raises LedgerUnavailable.
    """
    differing = await _differing(ledger, states)
    if differing:
        await asyncio.sleep(SETTLE_TIME)
        differing = await _differing(ledger, {saga_id: states[saga_id] for saga_id in differing})
    return differing


async def _differing(ledger: RunLedger, states: Mapping[str, str]) -> dict[str, str | None]:
    """The state in the ledger, or None, where it is not that of Temporal."""
    recorded = await ledger.states(list(states))
    return {saga_id: recorded.get(saga_id) for saga_id, state in states.items() if recorded.get(saga_id) != state}


async def write_row(locator: Locator, saga_id: str) -> str:
    """Write the row of a saga that Temporal has; returns what was done, as a message for operators.

    Raises RefusedError if it has no end and is not parked, or if its outcome cannot be verified; LedgerUnavailable.
    """
    temporal, ledger = locator.temporal, locator.ledger
    location = await locator.within_temporal().locate(saga_id)
    described = location.run
    if described is None:
        raise RefusedError(RUN_DELETED)
    view = await read_view(locator.within_temporal(), saga_id)
    if view.is_unverified:
        raise RefusedError(f"{view.state} {view.incomplete}")
    if await is_parked_undo(locator, location, view):
        raise RefusedError(f"Temporal has no run of its undo any more; {undo_again_command(saga_id)} finishes it")
    if view.state not in RECORDED_STATES:
        raise RefusedError(f"it is {view.state} now")
    last = described.run if location.undo is None else location.undo.run
    may_be_undone = view.state == "COMPLETED" and view.can_undo
    state = await read_machine(temporal, described.run, locator.settings) if may_be_undone else None
    machine = None if state is None else compress_state(state)
    record = make_record(
        view.to_json() | {"web_ui": None},
        saga_id=view.id,
        labels=view.labels,
        updated_at=last.close_time or _parked_at(view) or last.start_time,
        input_digest=input_digest(await first_input(temporal, described, locator.keys)),
        machine=machine,
        root_start=await nested_root_start(described.run),
    )
    if record is None:
        raise RefusedError("it has not started")
    await ledger.write([await _of_the_same_run(ledger, record)])
    if machine is None and view.can_undo:
        return f"its row is written as {view.state}; no worker answers, so the ledger cannot undo it"
    return f"its row is written as {view.state}"


async def _of_the_same_run(ledger: RunLedger, record: RunRecord) -> RunRecord:
    """The record with the key of the row that its worker has written.

    What Temporal knows of a terminated run is when it was started, the worker's key is when it began to run.
    """
    row = await ledger.find(record.saga_id)
    if row is None or row.started_at < record.started_at:
        return record
    return dataclasses.replace(record, started_at=row.started_at)


def _parked_at(view: SagaView) -> datetime | None:
    """The time at which the last operation was parked."""
    times = [datetime.fromisoformat(operation.since) for operation in view.parked]
    return max(times, default=None)
