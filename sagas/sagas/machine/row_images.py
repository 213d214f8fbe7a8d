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


def undone_steps(run: SagaRun) -> tuple[str, ...] | None:
    """The steps that are undone together now; None: all of them."""
    if run.phase != "backward":
        return ()
    return None if run.savepoint is None else tuple(sorted(run.plan.savepoints[run.savepoint]))
