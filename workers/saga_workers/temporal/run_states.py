"""The state of a saga as its run shows it: by its status, its search attributes, and the view in its memo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from temporalio.client import WorkflowExecutionStatus

from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView, ViewState


class RunWithMemo(Protocol):
    """A run, either ours or that of Temporal's client."""

    @property
    def status(self) -> WorkflowExecutionStatus | None: ...

    async def memo(self) -> Mapping[str, Any]: ...


def visible_state(run: RunInfo) -> ViewState:
    """The saga's state as far as Temporal alone knows it.

    Most runs never write their state: RUNNING and COMPLETED come from Temporal's own status. (A run past its commit
    point is COMMITTED here only if it had an error there.)
    """
    written = run.attributes.get("SagaState")
    match run.status:
        case WorkflowExecutionStatus.RUNNING | WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return written or "RUNNING"
        case WorkflowExecutionStatus.COMPLETED:
            undo = run.id.endswith(UNDO_SUFFIX)
            return written if written == "RESIDUE" else "COMPENSATED" if undo else "COMPLETED"
        case WorkflowExecutionStatus.CANCELED:
            return "COMPENSATED"
        case WorkflowExecutionStatus.FAILED:
            return written if written in ("COMPENSATED", "RESIDUE") else "FAILED"
        case _:
            return "TERMINATED"


async def closed_view(run: RunWithMemo) -> SagaView | None:
    """The view that a closed run left in its memo; None if it is open or left none."""
    if run.status is WorkflowExecutionStatus.RUNNING:
        return None
    document = (await run.memo()).get("saga")
    return SagaView.from_json(document) if isinstance(document, Mapping) else None


async def closed_state(run: RunInfo) -> ViewState:
    """The final state of a closed run, also in a namespace without the engine's search attributes."""
    view = await closed_view(run)
    return visible_state(run) if view is None or run.ended_from_outside else view.state


def may_be_undone(state: ViewState) -> bool:
    """Return whether a second run, the undo, may have changed what this one left."""
    return state in ("COMPLETED", "TERMINATED")  # an undo may follow a terminated run, see reconciliation
