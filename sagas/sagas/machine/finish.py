"""The end of a saga, whichever way it went."""

from __future__ import annotations

from sagas.machine import notify, redelivery
from sagas.machine.locking import locks
from sagas.machine.state import SagaRun
from sagas.protocol.messages import Finish, RecordState


def finish(run: SagaRun, *, completed: bool) -> None:
    """End the saga as COMPLETED or COMPENSATED, or as RESIDUE if an effect contradicts that."""
    run.ended_at = run.now
    run.cancel_timer("warn_after")
    locks.release_at_end(run)
    if run.residue:
        run.state = "RESIDUE"
    else:
        run.state = "COMPLETED" if completed else "COMPENSATED"
    if run.state != "COMPLETED":  # Temporal's own status says that a run has completed
        run.emit(RecordState(run.state, None, run.reason["kind"] if run.reason and not completed else None))
    redelivery.order_next(run)
    notify.notify_milestone(run, "residue" if run.residue else "completed" if completed else "compensated")
    run.emit(finish_command(run, completed=completed))


def finish_command(run: SagaRun, *, completed: bool) -> Finish:
    """How the saga has ended."""
    assert run.state in ("COMPLETED", "COMPENSATED", "RESIDUE")
    return Finish(run.state, completed, run.output if completed else None, run.reason)  # pyright: ignore[reportArgumentType]
