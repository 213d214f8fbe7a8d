"""Sagas that exist already under the id of a start: whether they may count as this start, and their claims."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from saga_activities.input_checks import INPUT_CHECKS
from saga_activities.ledger.records import Claim, NewClaim, RunRow
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.start.start_requests import StartRequest, StartResult
from saga_workers.temporal.saga_input import read_input
from saga_workers.temporal.saga_runs import was_never_accepted
from saga_workers.temporal.temporal_runs import NoAnswer, RunDescription, RunInfo
from saga_workers.temporal.visible_states import carried_start
from saga_workers.views.saga_view import read_view
from sagas.definition.input_validation import validate_input
from sagas.definition.model import Definition
from sagas.definition.times import read_timestamp
from sagas.errors import RefusedError
from sagas.expressions.work_budget import TooComplex
from sagas.protocol.payloads import EVENT_MEMO, input_digest
from sagas.protocol.saga_view import FINAL_STATES, STARTED_AGAIN, SagaView
from sagas.text.shell import saga_command


class AlreadyEnded(RefusedError):
    """The id belongs to a run that ended without completing; ``state`` is how.

    ``event``: the identity of the event, or of the enqueued row, that had started it; None if none did, or nobody knows
    it. ``started_at``: when it was started, if that is known.
    """

    def __init__(self, saga_id: str, state: str, event: str | None = None, started_at: datetime | None = None) -> None:
        self.saga_id, self.state, self.event, self.started_at = saga_id, state, event, started_at
        if state == "TERMINATED":
            super().__init__(
                f"{saga_id} was terminated, so it is unknown which of its effects exist",
                help=f"inspect it with `{saga_command('show', saga_id)}`",
            )
        elif state in STARTED_AGAIN:
            super().__init__(
                f"{saga_id} has ended {state}",
                help="start it again as a new generation with --again",
            )
        else:
            super().__init__(
                f"{saga_id} is {state}",
                help=f"inspect it with `{saga_command('show', saga_id)}`, or choose another id with --id",
            )


class StartedWithOtherInput(RefusedError):
    """The id belongs to the same saga with another input; ``state`` is how it has ended, None if it has not."""

    def __init__(self, saga_id: str, state: str | None) -> None:
        self.state = state
        if state in STARTED_AGAIN:
            super().__init__(
                f"{saga_id} has been started with another input, and has ended {state}",
                help="start it with this input as a new generation with --again, or choose another id with --id",
            )
        else:
            super().__init__(
                f"{saga_id} has been started with another input",
                help=f"inspect it with `{saga_command('show', saga_id)}`, or choose another id with --id",
            )


class Unverified(RefusedError):
    """The id belongs to a closed run that may be anybody's: no key of the project has signed how it has ended."""

    def __init__(self, saga_id: str) -> None:
        super().__init__(
            f"a run of {saga_id} is closed, and no key of this project has signed how it has ended",
            help=f"inspect it with `{saga_command('show', saga_id)}`, or choose another id with --id",
        )


@dataclass(frozen=True, slots=True)
class ClaimedId:
    """The claim of an id for a single start. ``made_at`` is None if it was claimed before.

    ``bulk``: the claim of the bulk workflow that runs it. ``row``: the newest of the id.
    """

    saga_id: str
    made_at: datetime | None
    bulk: Claim | None
    row: RunRow | None


class ExistingSagas:
    """The sagas that may already have the id of a start of the saga ``definition``."""

    def __init__(self, locator: Locator, definition: Definition) -> None:
        self._locator = locator
        self._in_temporal = locator.within_temporal()
        self._ledger = locator.ledger
        self._definition = definition
        self._name = definition.saga

    async def claim(self, saga_id: str, request: StartRequest, labels: Mapping[str, str] | None) -> ClaimedId | None:
        """Claim the id in the ledger, so that no bulk workflow runs it too. None if the ledger does not answer.

        Raises LedgerUnavailable if it does not answer, and Temporal does not know the id.
        """
        new = NewClaim(saga_id, input_digest(request.input), {**request.labels, **(labels or {})})
        try:
            claim = await self._ledger.claim_single(new, self._name)
        except LedgerUnavailable as error:
            if not await self.is_free(saga_id):
                return None
            raise LedgerUnavailable(
                f"it is unknown whether {saga_id} has run before: {error.message}", help="start it again later"
            ) from error
        bulk = claim.held if claim.held is not None and claim.held.bulk_id is not None else None
        return ClaimedId(saga_id, claim.made_at, bulk, claim.row)

    async def is_free(self, saga_id: str) -> bool:
        """True if Temporal has no saga of the id: no run at all, or only closed ones that never became one."""
        return (await self._in_temporal.locate(saga_id)).kind == "unknown"

    async def claim_deleted(self, saga_id: str, request: StartRequest) -> Mapping[str, str]:
        """Claim the id of a saga whose run, or whose bulk workflow, was deleted; the labels that it had, as far as the
        ledger knows them.

        Raises RefusedError if a bulk workflow runs it.
        """
        labels = await self._recorded_labels(saga_id)
        while (claim := await self.claim(saga_id, request, labels)) is not None and claim.bulk is not None:
            if (await self._locator.members([claim.bulk]))[0].bulk is not None:
                raise RefusedError(f"{saga_id} runs in the bulk workflow {claim.bulk.bulk_id}")
            await self._ledger.release_unstarted(claim.bulk)
        return labels

    async def _recorded_labels(self, saga_id: str) -> Mapping[str, str]:
        claim = (await self._ledger.claims([saga_id])).get(saga_id)
        if claim is not None:
            return claim.labels if claim.saga == self._name else {}
        row = await self._ledger.find(saga_id)
        return row.view.labels if row is not None and row.view.saga == self._name else {}

    async def give_up(self, claim: ClaimedId | None) -> None:
        """Release the claim of an id under which nothing was started.

        Only with a row it is protected from bulk workflows without the claim.
        """
        if claim is not None and claim.made_at is not None and claim.row is not None:
            with suppress(LedgerUnavailable):  # it is deleted with the ledger's upkeep
                await self._ledger.release_single(claim.saga_id, claim.made_at)

    async def past_run(self, claim: ClaimedId | None) -> RunRow | None:
        """The run of a claimed id that only the ledger knows."""
        if claim is None or claim.row is None:
            return None
        return (await self._locator.locate(claim.saga_id)).row

    async def next_generation(self, saga_id: str, past: RunRow | None, after: int | None = None) -> int | None:
        """The generation for `--again`: the highest of any entry so far plus one; None if it may not be started again.

        ``past``: the run that only the ledger knows. ``after``: the only generation of the saga that it may follow.
        Raises RefusedError while the values of the saga are being forgotten.
        """
        if past is None and await self.is_free(saga_id):
            return None
        view = await read_view(self._locator, saga_id) if past is None else past.view
        if view.is_unverified:
            raise Unverified(saga_id)
        if view.state not in STARTED_AGAIN or after not in (None, view.generation or 1):
            return None
        if await self._is_forgetting(view):
            raise RefusedError(
                f"the values of {saga_id} are being forgotten, with those that a new generation would store",
                help=f"{saga_command('forget', saga_id, reason='…')}    completes it; then start the saga again",
            )
        return max([view.generation or 1, *(step.generation or 1 for step in view.steps)]) + 1

    async def _is_forgetting(self, view: SagaView) -> bool:
        """True if the ledger says that the values of the saga are being forgotten, and not of an earlier generation."""
        since = read_timestamp(view.started_at)
        with suppress(LedgerUnavailable):  # Temporal knows the saga, so it may be started without the ledger
            return await self._ledger.is_forgetting(view.id, since)
        return False

    def check_claim(self, claim: Claim, input: Any) -> None:
        """Raise RefusedError unless the saga that has claimed this id may count as this start."""
        self._require_same_start(claim.saga_id, claim.saga, claim.input_digest, input)

    async def run_in_bulk(self, claim: Claim, input: Any) -> StartResult:
        """The saga that a bulk workflow runs, if it may count as this start."""
        self.check_claim(claim, input)
        saga_id = claim.saga_id
        view = await read_view(self._locator, saga_id)
        if view.state not in FINAL_STATES:
            return StartResult(saga_id, "", False, bulk_id=view.bulk_workflow)
        completed = StartResult(saga_id, "", False, completed=True, source="ledger")
        return _ended(saga_id, view.state, completed, started_at=claim.claimed_at)

    def run_in_ledger(self, row: RunRow, input: Any, event: str | None = None) -> StartResult:
        """The run whose end only the ledger knows, if it may count as this start. ``event``: what has started it."""
        view = row.view
        self._require_same_start(view.id, view.saga, row.input_digest, input, view.state)
        is_compared = row.input_digest is not None
        completed = StartResult(view.id, "", False, completed=True, source="ledger", is_compared=is_compared)
        return _ended(view.id, view.state, completed, event, row.started_at)

    async def run_in_temporal(self, saga_id: str, input: Any, claim: ClaimedId | None) -> StartResult:
        """The run under this id, if it is the same saga with the same input and may count as this start.

        Raises NoAnswer if Temporal does not list the runs before one that never became a saga.
        """
        location = await self._in_temporal.locate(saga_id)
        if location.run is None:
            raise RefusedError(f"the existing run of {saga_id} has just been deleted; start it again")
        run = location.run.run
        if await was_never_accepted(self._locator.temporal, run):
            raise NoAnswer(
                f"a start of {saga_id} has just been refused or ended from outside, and Temporal does not list the runs"
                " of this id yet",
                help="start it again",
            )
        if not run.running:
            await self.give_up(claim)
        state = event = None
        if not run.running:
            event = await event_of(run)
            outcome = await outcome_of(self._locator, run)
            if outcome.row is not None:
                return self.run_in_ledger(outcome.row, input, event)
            if not outcome.is_believed:
                raise Unverified(saga_id)
            state = outcome.state
        # Another saga's input may not be readable; the name alone refuses it.
        is_same_saga = run.workflow_type == self._name
        digest = await self._digest(location.run) if is_same_saga else None
        self._require_same_start(saga_id, run.workflow_type, digest, input, state)
        if state is None:
            return StartResult(saga_id, run.run_id, False)
        if location.undo is not None:
            view = await read_view(self._locator, saga_id)
            if view.is_unverified:
                raise Unverified(saga_id)
            state = view.state
        began = await carried_start(run)
        started_at = run.start_time if began is None else datetime.fromtimestamp(began, UTC)
        return _ended(saga_id, state, StartResult(saga_id, run.run_id, False, completed=True), event, started_at)

    async def _digest(self, run: RunDescription) -> str:
        """The digest of the input of a run of this saga.

        One that no worker has checked yet is completed as the worker will do it.
        """
        read = await read_input(self._locator.temporal, run, self._locator.keys)
        if read.is_whole:
            return input_digest(read.value)
        value, _ = await INPUT_CHECKS.run(lambda: _validated(self._definition, read.value), caller=self._name)
        return input_digest(value)

    def _require_same_start(
        self, saga_id: str, saga: str, digest: str | None, input: Any, state: str | None = None
    ) -> None:
        """Raise RefusedError unless the id belongs to this saga with this input.

        ``digest``: that of the input it was started with; None: not recorded. ``state``: how it has ended.
        """
        if saga != self._name:
            raise RefusedError(
                f"the id {saga_id} belongs to a run of the saga {saga}", help="choose another id with --id"
            )
        if digest in (None, input_digest(input)):
            return
        raise StartedWithOtherInput(saga_id, state)


def _validated(definition: Definition, input: Any) -> tuple[Any, list[str]]:
    with suppress(TooComplex):
        return validate_input(definition, input)
    return input, []


async def event_of(run: RunInfo) -> str | None:
    """The identity of the event that has started a run; None if none did, or it is not recorded."""
    event = (await run.memo()).get(EVENT_MEMO)
    return event if isinstance(event, str) else None


def _ended(
    saga_id: str, state: str, completed: StartResult, event: str | None = None, started_at: datetime | None = None
) -> StartResult:
    """The result for a saga that has ended. Raises AlreadyEnded unless it has completed."""
    if state != "COMPLETED":
        raise AlreadyEnded(saga_id, state, event, started_at)
    return completed
