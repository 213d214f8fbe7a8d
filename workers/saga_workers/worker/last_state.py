"""The state of a saga's machine from which its undo starts, or with which a terminated saga is continued."""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio.service import RPCError, RPCStatusCode

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.location import BulkMember
from saga_workers.location.locator import Locator
from saga_workers.temporal.holding_runs import holder_in_words
from saga_workers.temporal.machine_query import query_machine
from saga_workers.temporal.saga_runs import closed_before_begun, state_is_lost, was_accepted
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo, describe_run
from saga_workers.temporal.unanswered_resets import require_answered_reset
from saga_workers.views.accesses import forgotten_text
from sagas.errors import InfrastructureError, RefusedError
from sagas.protocol.payloads import UNDO_SUFFIX, VIEW_QUERY, unpack_state
from sagas.settings.signing_keys import SigningKeys
from sagas.text.shell import saga_command


class LastStates:
    """Reads them from the closed workflow of the saga, from that of its bulk workflow, or from the ledger."""

    def __init__(self, locator: Locator, keys: SigningKeys | None) -> None:
        self._locator = locator
        self._keys = keys

    async def __call__(self, saga_id: str, run_id: str | None = None) -> str | None:
        """The state as :func:`sagas.protocol.payloads.pack_state` writes it; None if there is none. ``run_id``: the
        only run, of the saga or of its bulk workflow, whose state is wanted.

        Raises RefusedError if the saga is still running, never began, its state is lost, not signed, that of before a
        reset or of another run, or its values are being forgotten; InfrastructureError if its workflow is about to
        close or the ledger does not answer.
        """
        try:
            state = await self._read(saga_id, run_id)
            await self._require_values(saga_id, state)
        except LedgerUnavailable as error:
            raise InfrastructureError(error.message) from error  # Temporal tries again
        return state

    async def _require_values(self, saga_id: str, state: str | None) -> None:
        """Raise RefusedError if `saga forget` has begun, which looks in turn for the run that asks here."""
        began = None if state is None else unpack_state(state).get("started_at")
        since = None if began is None else datetime.fromtimestamp(float(began), UTC)
        forgotten = await self._locator.ledger.begun_forgetting(saga_id, since)
        if forgotten is not None:
            is_open = await self._locator.ledger.is_forgetting(saga_id, since)
            raise RefusedError(f"{saga_id} cannot be undone: {forgotten_text(forgotten, is_open=is_open)}")

    async def _read(self, saga_id: str, run_id: str | None) -> str | None:
        location = await self._locator.locate(saga_id)
        home = location.run if location.member is None else location.member.bulk
        if run_id is not None and (home is None or home.run.run_id != run_id):
            raise RefusedError(
                f"this order undoes what the run {run_id} of {saga_id} has left, and that is not its last run any more"
            )
        if location.row is not None:
            return await self._locator.ledger.machine(saga_id)
        if location.member is not None:
            return await self._in_bulk_workflow(saga_id, location.member)
        return None if location.run is None else await self._in_own_workflow(location.run)

    async def _in_own_workflow(self, described: RunDescription) -> str | None:
        saga_id = described.run.id
        await self._refuse_foreign(described.run)
        handle = self._locator.temporal.get_workflow_handle(saga_id)
        if described.run.running:
            view = await handle.query(VIEW_QUERY)
            if isinstance(view, dict) and view.get("ended_at") is not None:
                # It is COMPLETED for all who ask, but closes only when its locks are released.
                raise InfrastructureError(f"{saga_id} has ended, but its workflow is not closed yet")
            is_before_commit = not isinstance(view, dict) or view.get("phase") == "forward"
            raise _still_running(saga_id, is_before_commit=is_before_commit)
        await require_answered_reset(self._locator.temporal, described.run, self._keys)
        try:
            return await query_machine(self._locator.temporal, (saga_id, described.run.run_id), self._keys)
        except RPCError as error:
            if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
            # Temporal asks no run that was closed before its first workflow task, or while that failed again and again.
            if await was_accepted(self._locator.temporal, described.run):
                raise state_is_lost(saga_id) from error
            raise closed_before_begun(saga_id) from error

    async def _refuse_foreign(self, run: RunInfo) -> None:
        """Raise RefusedError if a saga undoes a nested one, and this run of its id is not one that it has started: it
        may be on a task queue that nobody polls, and tells nothing of the nested saga.
        """
        undo = await describe_run(self._locator.temporal, run.id + UNDO_SUFFIX)
        parent = None if undo is None or not undo.run.running else undo.run.parent_id
        if parent is not None and _without_undo(run.parent_id) != _without_undo(parent):
            raise RefusedError(f"{holder_in_words(run)} has the id {run.id}, and {parent} has not started it")

    async def _in_bulk_workflow(self, saga_id: str, member: BulkMember) -> str | None:
        if member.bulk is None:
            return None
        if member.open:
            raise _still_running(saga_id, is_before_commit=False)
        run_id = (member.bulk_id, member.bulk.run.run_id)
        return await query_machine(self._locator.temporal, run_id, self._keys, member=saga_id)


def _without_undo(saga_id: str | None) -> str:
    """The saga whose run, or whose undo, has this id; empty if there is none."""
    return (saga_id or "").removesuffix(UNDO_SUFFIX)


def _still_running(saga_id: str, *, is_before_commit: bool) -> RefusedError:
    """``is_before_commit``: it is known that the saga can be cancelled."""
    cancel, show = saga_command("cancel", saga_id), saga_command("show", saga_id)
    then = f"cancel it with `{cancel}`" if is_before_commit else f"see `{show}`"
    return RefusedError(f"{saga_id} is still running; {then}")
