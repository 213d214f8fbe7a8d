"""What an automatic undo needs to know about other undos: an undo may leave a row to one that is certain to come."""

from __future__ import annotations

from sagas.machine.state import LedgerEntry, SagaRun
from sagas.protocol.payloads import idempotency_key


def undo_scope(run: SagaRun, entry: LedgerEntry) -> str:
    """The scope of the images of an entry: see :class:`sagas.protocol.messages.GuardSpec`.

    A confirmed step that is undone on another connection cannot restore rows for others, so it is a scope of its own.
    """
    step = run.step(entry)
    confirmed = step.compensate.confirmed if step.compensate else None
    if confirmed is not None and confirmed.connection != step.do.connection:
        return idempotency_key(run.saga_id, entry.id, entry.generation)
    return run.undo_scope


NOT_RECORDED = "NotRecorded"
"""The type of the error of a skipped undo whose images the database has not closed: it was not reached, or refused."""


def is_not_recorded(entry: LedgerEntry) -> bool:
    """True if an operator has skipped the undo, and the database has not closed its images yet."""
    return entry.undo is not None and (entry.undo.error or {}).get("type") == NOT_RECORDED


def undone_steps(run: SagaRun) -> tuple[str, ...] | None:
    """The steps that are undone together now; None: all of them, and those of nested sagas."""
    if run.phase != "backward":
        return ()
    certain = run.plan.savepoints[run.savepoint] if run.savepoint is not None else run.plan.steps.keys()
    open_images = {entry.step for record in run.steps.values() for entry in record.entries if is_not_recorded(entry)}
    if run.savepoint is None and not open_images:
        return None
    return tuple(sorted(set(certain) - open_images))
