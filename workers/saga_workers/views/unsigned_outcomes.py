"""The outcomes that closed runs claim: any client can close a run under the id of a saga or of its undo."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from temporalio.client import WorkflowExecutionStatus

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.temporal.machine_query import verifying_keys
from saga_workers.temporal.run_states import visible_state
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.payloads import OUTCOME_MEMO, OUTCOME_SIGNATURE_MEMO
from sagas.protocol.saga_view import SagaView
from sagas.protocol.signed_content import message_content, outcome_message
from sagas.settings.signing_keys import SigningKeys

UNVERIFIED = "(unverified): no key of this project has signed the outcome of the run"
_CLOSED_BY_ITSELF = (
    WorkflowExecutionStatus.COMPLETED,
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.CANCELED,
)


async def believed_view(locator: Locator, saga_id: str, view: SagaView, *runs: RunInfo | None) -> SagaView:
    """The view that these runs of the saga and of its undo have left, if the project has signed what each says.

    Otherwise that of the ledger, if it has a row of the saga, and else the same view, marked as unverified. A reader
    without a key of the project, or of one that accepts anything, can verify nothing and believes it.
    """
    keys = verifying_keys(locator.settings)
    if keys is None or not keys.keys or view.state == "FAILED":
        return view
    if all([run is None or await _is_signed(keys, run) for run in runs]):
        return view
    row = None
    with contextlib.suppress(LedgerUnavailable):
        row = await locator.ledger.find(saga_id)
    return replace(view if row is None else row.view, incomplete=UNVERIFIED)


async def _is_signed(keys: SigningKeys, run: RunInfo) -> bool:
    """True for an outcome with a signature for this run, and for a run that claims none."""
    if run.status not in _CLOSED_BY_ITSELF:
        return True
    fields, codec = run.raw.memo.fields, run.converter.payload_codec
    if OUTCOME_MEMO not in fields:
        return visible_state(run) == "FAILED"  # it was refused
    payload = fields[OUTCOME_MEMO]
    [plain] = [payload] if codec is None else await codec.decode([payload])
    signature = (await run.memo()).get(OUTCOME_SIGNATURE_MEMO)
    return keys.verifies("outcome", message_content([run.id, run.run_id], outcome_message(plain.data)), signature)
