"""Events that start a saga again which they have started, and which was compensated (`redeliver` of a trigger).

The saga that ends COMPENSATED orders that itself, so it happens once for each compensation, whatever is killed. What a
person has decided is not repeated: a cancel, an undo, a rollback that an operator chose.
"""

from __future__ import annotations

from sagas.definition.times import format_timestamp
from sagas.machine.state import SagaRun
from sagas.protocol.messages import Redeliver
from sagas.protocol.redelivery_names import redelivery_workflow_id
from sagas.protocol.redelivery_view import RedeliveryView

_REPEATED = frozenset({"rejected", "failed", "unknown", "deadline", "definition", "locked"})
"""The kinds of reasons after which the event is offered again."""


def order_next(run: SagaRun) -> None:
    """Order the next start of a saga that has just been compensated, or the record that it has none left."""
    offered = run.redelivery
    if offered is None or run.state != "COMPENSATED" or not is_repeated(run):
        return
    intervals, passed = offered["intervals"], offered["passed"]
    if passed < len(intervals):
        offered["at"] = run.now + float(intervals[passed])
    run.emit(Redeliver(redelivery_workflow_id(run.saga_id, run.generation), run.generation, intervals, passed))


def is_repeated(run: SagaRun) -> bool:
    """Return whether nobody has decided that the saga goes back."""
    return run.reason is not None and run.reason["kind"] in _REPEATED and not run.cancel_requested


def shown(run: SagaRun) -> RedeliveryView | None:
    """The redelivery for the view; None if the saga has none, or has not been compensated."""
    offered = run.redelivery
    if offered is None or run.state != "COMPENSATED" or not is_repeated(run):
        return None
    at = offered.get("at")
    return RedeliveryView(
        number=offered["passed"] + (at is not None),
        of=len(offered["intervals"]),
        at=format_timestamp(at),
        run=redelivery_workflow_id(run.saga_id, run.generation),
    )
