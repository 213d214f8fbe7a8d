"""The outcomes that closed runs claim: any client can close a run under the id of a saga or of its undo.

So the memo of a run counts only if a worker of the project has signed it for this run. Otherwise the ledger's row of
the saga counts; without one, the run counts as closed from outside, like a terminated one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Protocol

from saga_activities.ledger.records import RunRow
from saga_workers.ledger.run_ledger import LedgerUnavailable, RunLedger
from saga_workers.temporal.run_states import closed_view, visible_state
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.payloads import OUTCOME_MEMO, OUTCOME_SIGNATURE_MEMO, UNDO_SUFFIX
from sagas.protocol.saga_view import UNVERIFIED, SagaView, ViewState
from sagas.protocol.signed_content import message_content, outcome_message
from sagas.settings.signing_keys import SigningKeys

FROM_LEDGER = f"{UNVERIFIED}; this is what the ledger has"


class Reader(Protocol):
    """A reader of outcomes, such as a locator. Without ``keys`` it can verify nothing, and believes every run."""

    ledger: RunLedger

    @property
    def keys(self) -> SigningKeys | None: ...


@dataclass(frozen=True, slots=True)
class ClosedOutcome:
    """How a closed run has ended, as far as that is believed.

    ``view``: the one that the run has left, or that of the ledger's ``row``; None without one. ``is_verified``: the
    state is what the run itself shows, and that counts: it is signed, there are no keys, or Temporal closed the run.
    """

    state: ViewState
    view: SagaView | None
    row: RunRow | None
    is_verified: bool


async def closed_outcome(reader: Reader, run: RunInfo) -> ClosedOutcome:
    """How a closed run has ended, also in a namespace without the engine's search attributes."""
    if run.ended_from_outside:
        return ClosedOutcome(visible_state(run), None, None, is_verified=True)
    if await _are_believed(reader, run):
        view = await closed_view(run)
        return ClosedOutcome(visible_state(run) if view is None else view.state, view, None, is_verified=True)
    row = await _recorded(reader, run.id.removesuffix(UNDO_SUFFIX))
    if row is not None:
        return ClosedOutcome(row.view.state, row.view, row, is_verified=False)
    return ClosedOutcome("TERMINATED", None, None, is_verified=False)


async def closed_state(reader: Reader, run: RunInfo) -> ViewState:
    """The final state of a closed run."""
    return (await closed_outcome(reader, run)).state


async def believed_view(reader: Reader, saga_id: str, view: SagaView, *runs: RunInfo | None) -> SagaView:
    """The view that these runs of the saga and of its undo have left, if the project has signed what each says.

    Otherwise that of the ledger, if it has a row of the saga, and else the same view, marked as unverified.
    """
    if await _are_believed(reader, *runs):
        return view
    row = await _recorded(reader, saga_id)
    return replace(view, incomplete=UNVERIFIED) if row is None else replace(row.view, incomplete=FROM_LEDGER)


async def _are_believed(reader: Reader, *runs: RunInfo | None) -> bool:
    """True if the project has signed what these runs say, or the reader cannot verify it."""
    keys = reader.keys
    if keys is None or not keys.keys:
        return True
    return all([run is None or await _is_signed(keys, run) for run in runs])


async def _is_signed(keys: SigningKeys, run: RunInfo) -> bool:
    """True if the outcome is signed for this run, if the run was refused, and for one that did not close by itself."""
    if not run.ended_by_itself:
        return True
    fields, codec = run.raw.memo.fields, run.converter.payload_codec
    if OUTCOME_MEMO not in fields:
        return visible_state(run) == "FAILED"  # it was refused
    payload = fields[OUTCOME_MEMO]
    [plain] = [payload] if codec is None else await codec.decode([payload])
    signature = (await run.memo()).get(OUTCOME_SIGNATURE_MEMO)
    return keys.verifies("outcome", message_content([run.id, run.run_id], outcome_message(plain.data)), signature)


async def _recorded(reader: Reader, saga_id: str) -> RunRow | None:
    with contextlib.suppress(LedgerUnavailable):
        return await reader.ledger.find(saga_id)
    return None
