"""How runs have ended, as far as that is verified: any client can close a run under the id of a saga or of its undo.

So the memo of a run counts only if a worker of the project has signed it for this run. Otherwise the ledger's row of
the saga counts; without one, the run counts as closed from outside, like a terminated one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Protocol

from saga_activities.ledger.records import RunRow
from saga_workers.ledger.run_ledger import LedgerUnavailable, RunLedger
from saga_workers.temporal.saga_runs import was_refused
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.temporal.visible_states import closed_view, visible_state
from sagas.protocol.doubtful_outcomes import IN_LEDGER, UNVERIFIED, encrypted_outcome
from sagas.protocol.payloads import OUTCOME_MEMO, OUTCOME_SIGNATURE_MEMO, UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView, ViewState
from sagas.protocol.signed_content import message_content, view_message
from sagas.settings.signing_keys import SigningKeys


class OutcomeReader(Protocol):
    """A reader of outcomes, such as a locator. Without ``keys`` it can verify nothing, and believes every run."""

    ledger: RunLedger

    @property
    def keys(self) -> SigningKeys | None: ...

    def note_unverified_end(self) -> None:
        """Remember that an end is believed without keys."""
        ...


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The state of an open run, or how a closed one has ended, as far as that is believed.

    ``view``: the one that a closed run has left, or that of the ledger's ``row``; None without one. ``is_believed``:
    the state is what the run itself shows. Otherwise it is that of the ``row``, or TERMINATED, and ``doubt`` says why.
    """

    state: ViewState
    view: SagaView | None
    row: RunRow | None = None
    doubt: str = ""

    @property
    def is_believed(self) -> bool:
        return not self.doubt


async def outcome_of(reader: OutcomeReader, run: RunInfo) -> RunOutcome:
    """The outcome of a run, also in a namespace without the engine's search attributes."""
    if _is_unverifiable(reader, run):
        reader.note_unverified_end()
    doubt = await _doubt(reader.keys, run)
    if not doubt:
        view = await closed_view(run)
        return RunOutcome(visible_state(run) if view is None else view.state, view)
    with contextlib.suppress(LedgerUnavailable):
        row = await reader.ledger.find(run.id.removesuffix(UNDO_SUFFIX))
        if row is not None:
            return RunOutcome(row.view.state, row.view, row, doubt)
    return RunOutcome("TERMINATED", None, doubt=doubt)


async def state_of(reader: OutcomeReader, run: RunInfo) -> ViewState:
    """The state of an open run, or the final state of a closed one."""
    return (await outcome_of(reader, run)).state


async def verified_view(reader: OutcomeReader, run: RunInfo, view: SagaView) -> SagaView:
    """The ``view`` that a run shows, for people: if the run is not believed, that of the ledger, or the same one, in
    each case marked; also marked if nobody could verify it.
    """
    outcome = await outcome_of(reader, run)
    if outcome.is_believed:
        return replace(view, verified=False if _is_unverifiable(reader, run) else None)
    if outcome.view is not None:
        return replace(outcome.view, source=None, incomplete=f"{outcome.doubt}{IN_LEDGER}")
    return replace(view, verified=None, incomplete=outcome.doubt)


def can_verify(keys: SigningKeys | None) -> bool:
    """False in a process without a key of the project, and in a project that accepts anything."""
    return keys is not None and bool(keys.keys)


def _is_unverifiable(reader: OutcomeReader, run: RunInfo) -> bool:
    """True if a signature would say whether the end of the run is believed, and no key is here."""
    if not run.ended_by_itself or can_verify(reader.keys):
        return False
    return OUTCOME_MEMO in run.raw.memo.fields or not was_refused(run)


async def _doubt(keys: SigningKeys | None, run: RunInfo) -> str:
    """Why the outcome of a run is not believed; empty if the run is open, Temporal has closed it, or the outcome is
    signed, and always without keys.
    """
    if keys is None or not can_verify(keys) or not run.ended_by_itself:
        return ""
    if OUTCOME_MEMO not in run.raw.memo.fields:
        return "" if was_refused(run) else UNVERIFIED
    if (missing := await run.missing_memo_key(OUTCOME_MEMO)) is not None:
        return encrypted_outcome(missing)
    plain = await run.memo_payload(OUTCOME_MEMO)
    signature = (await run.memo()).get(OUTCOME_SIGNATURE_MEMO)
    content = message_content([run.id, run.run_id], view_message(plain.data))
    return "" if keys.verifies("outcome", content, signature) else UNVERIFIED
