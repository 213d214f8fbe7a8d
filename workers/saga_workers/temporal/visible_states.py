"""The state that a run shows in Temporal: by its status, its search attributes, and the view in its memo.

What of it is believed of a closed run, see :mod:`saga_workers.location.verified_outcomes`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from temporalio.client import WorkflowExecutionStatus

from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.temporal.visibility_filter import CLOCKS_DIFFER
from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.payloads import OUTCOME_MEMO, PAUSE_MEMO, STARTED_AT_MEMO, UNDO_SUFFIX
from sagas.protocol.saga_view import FINAL_STATES, PauseView, SagaView, ViewState


def visible_state(run: RunInfo) -> ViewState:
    """The saga's state as far as Temporal alone knows it.

    Most runs never write their state: RUNNING and COMPLETED come from Temporal's own status. (A run past its commit
    point is COMMITTED here only if it had an error there.) A run that is open has not ended, and one that begins later
    is in no state, whatever its start has claimed before the first task of the run could delete it.
    """
    has_begun = run.begins_at <= datetime.now(UTC) + CLOCKS_DIFFER
    written = run.attributes.get("SagaState") if has_begun else None
    match run.status:
        case WorkflowExecutionStatus.RUNNING | WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return "RUNNING" if written is None or written in FINAL_STATES else written
        case WorkflowExecutionStatus.COMPLETED:
            undo = run.id.endswith(UNDO_SUFFIX)
            return written if written == "RESIDUE" else "COMPENSATED" if undo else "COMPLETED"
        case WorkflowExecutionStatus.CANCELED:
            return "COMPENSATED"
        case WorkflowExecutionStatus.FAILED:
            return written if written in ("COMPENSATED", "RESIDUE") else "FAILED"
        case _:
            return "TERMINATED"


async def closed_view(run: RunInfo) -> SagaView | None:
    """The view that a closed run left in its memo; None if it is open or left none.

    A run leaves it in the task that closes it: what another run has in this field came with its start, from any client.
    (A run that a worker has begun deletes it, see :class:`saga_workers.worker.worker_trust.TrustInterceptor`.)
    """
    if not run.ended_by_itself:
        return None
    view = read_foreign_view((await run.memo()).get(OUTCOME_MEMO), run.id)
    return None if view is None else replace(view, saga=run.workflow_type)


async def visible_pause(run: RunInfo) -> PauseView | None:
    """The pause that an open run has recorded, without what it holds back; None without one."""
    order = run.attributes.get("SagaPaused")
    if order is None or not run.running or run.begins_at > datetime.now(UTC) + CLOCKS_DIFFER:
        return None
    words: Any = (await run.memo()).get(PAUSE_MEMO)
    try:
        pause = PauseView.from_json(words)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return pause if pause.order == order else None


async def carried_start(run: RunInfo) -> float | None:
    """The start time of the saga, in seconds since the epoch, if the run goes on with a saga that was begun before.

    Any client may start a run with any memo: one with a later time is not believed.
    """
    began = (await run.memo()).get(STARTED_AT_MEMO)
    if isinstance(began, int | float | Decimal) and 0 <= began <= run.start_time.timestamp():
        return float(began)
    return None


def may_be_undone(state: ViewState) -> bool:
    """Return whether a second run, the undo, may have changed what this one left."""
    return state in ("COMPLETED", "TERMINATED")  # an undo may follow a terminated run, see reconciliation
