"""The state of a saga's machine from which its undo starts, or with which a terminated saga is continued."""

from __future__ import annotations

from datetime import datetime

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.ledger.run_ledger import LedgerUnavailable, RunLedger
from sagas.errors import InfrastructureError, RefusedError


class LastStates:
    """Reads them from the closed workflow of the saga, from that of its bulk workflow, or from the ledger."""

    def __init__(self, client: Client, ledger: RunLedger | None) -> None:
        self._client = client
        self._ledger = ledger

    async def __call__(self, saga_id: str) -> str | None:
        """As :func:`sagas.protocol.payloads.pack_state` writes it; None if there is none.

        Raises RefusedError if the saga is still running, InfrastructureError if its workflow is about to close or the
        ledger does not answer.
        """
        described = await self._describe(saga_id)
        if described is not None and described.status is WorkflowExecutionStatus.RUNNING:
            if await self._has_ended(saga_id):
                # It is COMPLETED for whoever asks, but closes only when its locks are released.
                raise InfrastructureError(f"{saga_id} has ended, but its workflow is not closed yet")
            raise RefusedError(f"{saga_id} is still running; cancel it instead of undoing it")
        if described is None or described.status is not WorkflowExecutionStatus.COMPLETED:
            after = None if described is None else described.close_time
            state = await self._in_ledger(saga_id, after)
            if state is not None or described is None:
                return state
        return await self._client.get_workflow_handle(saga_id).query("machine", result_type=str)

    async def _has_ended(self, saga_id: str) -> bool:
        view = await self._client.get_workflow_handle(saga_id).query("saga")
        return isinstance(view, dict) and view.get("ended_at") is not None

    async def _in_ledger(self, saga_id: str, after: datetime | None) -> str | None:
        """The state of a saga that was started after this time, in a bulk workflow or in one that is forgotten."""
        if self._ledger is None:
            return None
        try:
            claim = await self._ledger.bulk_claim(saga_id)
            if claim is not None and claim.bulk_id is not None:
                return await self._in_bulk_workflow(saga_id, claim.bulk_id)
            row = None if after is None else await self._ledger.find(saga_id)
            if after is not None and (row is None or row.started_at <= after):
                return None
            return await self._ledger.machine(saga_id)
        except LedgerUnavailable as error:
            raise InfrastructureError(error.message) from error  # Temporal tries again

    async def _in_bulk_workflow(self, saga_id: str, bulk_id: str) -> str | None:
        described = await self._describe(bulk_id)
        if described is None:
            return None
        if described.status is WorkflowExecutionStatus.RUNNING:
            raise RefusedError(f"{saga_id} is still running in {bulk_id}; cancel it instead of undoing it")
        handle = self._client.get_workflow_handle(bulk_id)
        return await handle.query("machine", saga_id, result_type=_STATE)

    async def _describe(self, id: str) -> WorkflowExecutionDescription | None:
        try:
            return await self._client.get_workflow_handle(id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise


_STATE: type = str | None  # pyright: ignore[reportAssignmentType]
