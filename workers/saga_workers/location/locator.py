"""Finds where a saga lives, from Temporal, the claims, the ledger and the runs of undos.

Code that decides by only one of these, such as a start that looks which ids are taken, reads that one itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from temporalio.client import Client as Temporal

from saga_activities.guard.entry_key import fits_guard_key
from saga_activities.ledger.records import Claim, RunRow
from saga_workers.ledger.run_ledger import LedgerUnavailable, NoLedger, RunLedger, using_ledger
from saga_workers.location.counted_undos import counted_undo
from saga_workers.location.foreign_runs import may_have_effects
from saga_workers.location.known_ends import knows_end
from saga_workers.location.location import BulkMember, Location
from saga_workers.location.parent_command import parent_command
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.temporal.machine_query import verifying_keys
from saga_workers.temporal.root_starts import nested_root_start
from saga_workers.temporal.run_history import describe_bulk
from saga_workers.temporal.saga_input import UnreadableRunInput, first_input
from saga_workers.temporal.saga_runs import describe_saga_run, was_refused
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo, describe_run, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.temporal.visible_states import may_be_undone
from sagas.definition.saga_ids import workflow_id_problem
from sagas.definition.times import read_timestamp
from sagas.errors import SagaError, UsageError
from sagas.protocol.doubtful_outcomes import UNVERIFIED
from sagas.protocol.origin import may_equal
from sagas.protocol.payloads import UNDO_SUFFIX, input_digest
from sagas.protocol.saga_view import STARTED_AGAIN, SagaView
from sagas.settings import Settings
from sagas.settings.signing_keys import SigningKeys
from sagas.text.continuation_words import CANCEL_BEFORE
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect
    from sagas.project import Project


class Locator:
    """Finds the sagas of one project, by Temporal and the ledger.

    ``settings``: those of the project, whose databases tell of a saga that neither of them knows, and whose keys verify
    what closed runs say. ``keys``: those of a process that asks no database. ``project``: that of a process that has
    read its definitions.
    """

    def __init__(
        self,
        temporal: Temporal,
        ledger: RunLedger,
        settings: Settings | None = None,
        *,
        keys: SigningKeys | None = None,
        project: Project | None = None,
    ) -> None:
        self.temporal = temporal
        self.ledger = ledger
        self.settings = settings
        self.project = project
        self._unverified: set[str] = set()
        self._keys = keys

    @property
    def keys(self) -> SigningKeys | None:
        """The keys that verify what closed runs say; None without any, or if the project accepts anything."""
        if self.settings is not None and (self._keys is None or not self._keys.keys):
            self._keys = verifying_keys(self.settings)  # the first worker of a folder makes the key
        return self._keys

    async def if_not_ended(self, effects: Sequence[RecordedEffect]) -> str:
        """The condition for a new start of a saga of which Temporal has no run, for messages. ``effects``: its own, or
        those of the sagas nested in it. Raises LedgerUnavailable.
        """
        return "" if await knows_end(self.ledger, effects) else ", if it had not ended"

    def within_temporal(self) -> Locator:
        """Finds the same sagas without the ledger: as far as Temporal alone knows them."""
        locator = Locator(self.temporal, NoLedger(), self.settings, keys=self.keys, project=self.project)
        locator._unverified = self._unverified
        return locator

    def note_unverified_end(self) -> None:
        """See :class:`saga_workers.location.verified_outcomes.OutcomeReader`."""
        self._unverified.add("ends")

    @property
    def believes_unverified(self) -> bool:
        """True once it was told of an end that it cannot verify."""
        return bool(self._unverified)

    async def locate(self, saga_id: str) -> Location:
        """The location of the saga, or of the saga whose undo has this id. Raises LedgerUnavailable if only it knows.

        The order of the questions makes the answer hold while the saga moves: it leaves a bulk workflow by starting its
        own run before its claim is handed over, and its row is written in the transaction that deletes its claim.
        """
        saga_id = saga_id.removesuffix(UNDO_SUFFIX)
        run = await describe_saga_run(self.temporal, saga_id)
        if run is not None and run.run.running:
            return Location(saga_id, run)
        if run is not None and (member := await self._member_beside(run)) is not None:
            return Location(saga_id, member)
        if run is not None and not run.never_accepted and run.run.ended_from_outside:
            ended = await self._ended_before(run.run)
            if ended is not None:
                return ended
        outcome = None if run is None else await outcome_of(self, run.run)
        state = None if outcome is None else outcome.state
        if run is None or outcome is None or run.never_accepted or not outcome.is_believed or state in STARTED_AGAIN:
            # When somebody else has closed a run of his own under the id says nothing about the saga in the ledger.
            is_own = run is not None and not run.never_accepted and outcome is not None and outcome.doubt != UNVERIFIED
            closed_at = run.run.close_time if run is not None and is_own else None
            later = await self._beyond_temporal(saga_id, closed_at)
            if later.home is not None:
                return later
            if run is None and await describe_run(self.temporal, saga_id) is not None:
                return await self.locate(saga_id)  # it has left its bulk workflow since the first question
            if run is None or run.never_accepted:
                undo = await describe_saga_run(self.temporal, saga_id + UNDO_SUFFIX)
                return Location(saga_id, run if undo is None else None, undo)
        undo = await self.undo_of(run.run) if state is not None and may_be_undone(state) else None
        if undo is None and outcome is not None and state == "COMPLETED" and outcome.view and outcome.view.can_undo:
            row = await self._undone_row(run.run, outcome.view)
            return Location(saga_id, run if row is None else row)
        if undo is not None and undo.run.ended_by_itself and not undo.never_accepted:
            # It may have been started again since, by a run that Temporal has deleted.
            later = await self._beyond_temporal(saga_id, undo.run.close_time)
            if later.home is not None:
                return later
        return Location(saga_id, run, undo)

    async def locate_known(self, saga_id: str) -> Location:
        """Locate a saga that must exist: raises UsageError if it is unknown."""
        location = await self.locate(saga_id)
        if location.kind != "unknown":
            return location
        if location.run is not None:
            raise UsageError(
                f"there is no saga with the id {saga_id}: its start was refused, or ended before it was accepted",
                help=saga_command("show", location.saga_id),
            )
        raise await self.unknown_saga(location.saga_id)

    async def unknown_saga(self, saga_id: str) -> UsageError:
        """The error for an id that nobody knows, or of which only databases of the project have traces."""
        from saga_workers.location.continuation_advice import advice_after_start, resume_options
        from saga_workers.location.traces import open_effects, open_effects_of_all, open_origin

        try:
            effects = await self._recorded_effects(saga_id)
            open_there, origin = open_effects(effects), open_origin(effects)
            of_nested = {} if open_there else await self.effects_of_nested(saga_id)
        except SagaError as error:
            return UsageError(
                f"Temporal has no run of {saga_id} in the namespace {self.temporal.namespace}, and it is unknown "
                f"whether it has open effects: {error.message}",
                help=error.help,
            )
        if nested := open_effects_of_all(of_nested, saga_id):
            condition = await self.if_not_ended(list(chain.from_iterable(of_nested.values())))
            then = f"starts it again{condition}; {CANCEL_BEFORE}"
            return UsageError(
                f"Temporal has no run of {saga_id} any more, and the effects of its nested sagas are open: {nested}",
                help=f"{saga_command('resume', saga_id, definition='FILE', input='@FILE')}    {then}",
            )
        if open_there:
            again = resume_options(self, saga_id, origin) or saga_command("resume", saga_id)
            condition = await self.if_not_ended(effects)
            advice = await advice_after_start(self, saga_id, origin, effects)
            then = f"starts it again where its effects are{condition}; {advice}"
            if origin is not None and (parent := origin.parent) is not None:
                again = await parent_command(self, saga_id, await self.locate(parent), origin)
                then = f"it is nested in {parent}, which starts it again; {CANCEL_BEFORE}"
            return UsageError(
                f"Temporal has no run of {saga_id} any more, and its effects are open: {open_there}",
                help=f"{again}    {then}",
            )
        return UsageError(
            f"there is no saga with the id {saga_id} in the namespace {self.temporal.namespace}",
            help="saga list    lists the ids",
        )

    async def _recorded_effects(self, saga_id: str) -> list[RecordedEffect]:
        """The effects of a saga. Raises SagaError if a database of the project cannot tell."""
        if self.settings is None or not fits_guard_key(saga_id):
            return []
        from saga_workers.location.traces import recorded_effects

        return await recorded_effects(self.settings, saga_id)

    async def effects_of_nested(self, saga_id: str) -> dict[str, list[RecordedEffect]]:
        """The effects of the sagas that are nested in this one, by id. Raises SagaError if a database cannot tell."""
        if self.settings is None or not fits_guard_key(saga_id):
            return {}
        from saga_workers.location.traces import effects_of_sagas, nested_sagas

        return await effects_of_sagas(self.settings, await nested_sagas(self.settings, saga_id))

    async def undo_of(self, run: RunInfo) -> RunDescription | None:
        """The newest run that undoes this one; None if there is none, see :func:`counted_undo`."""
        outside = run.ended_from_outside
        return await counted_undo(
            self, run.id, run.workflow_type, run.start_time, queue=run.task_queue, closed_from_outside=outside
        )

    async def members(self, claims: Sequence[Claim], *, without: Collection[str] = ()) -> list[BulkMember]:
        """The claims of bulk workflows, each with its bulk workflow, which is asked for once."""
        wanted = [claim for claim in claims if claim.saga_id not in without]
        ids = list(dict.fromkeys(claim.bulk_id for claim in wanted if claim.bulk_id is not None))
        described = await asyncio.gather(*(describe_bulk(self.temporal, id) for id in ids))
        runs = dict(zip(ids, described, strict=True))
        return [BulkMember(claim, runs[claim.bulk_id]) for claim in wanted if claim.bulk_id is not None]

    async def _beyond_temporal(self, saga_id: str, closed_at: datetime | None) -> Location:
        """Return what the ledger knows of the saga, or of a generation that was started after ``closed_at``."""
        if workflow_id_problem(saga_id) is not None:
            return Location(saga_id, None)  # no row has such an id, and a database may not even read it
        # The claim first: when it is deleted, there is a row.
        claim = await self.ledger.bulk_claim(saga_id)
        if claim is not None:
            [member] = await self.members([claim])
            if member.open:
                return Location(saga_id, member)
            if await self.ledger.bulk_claim(saga_id) != claim:
                return await self.locate(saga_id)  # it has left or ended, and then its bulk workflow was over
            return Location(saga_id, member, await counted_undo(self, saga_id, claim.saga, claim.claimed_at))
        row = await self.ledger.find(saga_id)
        if row is None or (closed_at is not None and row.started_at <= closed_at):
            return Location(saga_id, None)
        undo = await counted_undo(self, saga_id, row.view.saga, row.started_at)
        counts = undo is not None and (undo.run.running or may_be_undone(row.view.state))
        return Location(saga_id, row, undo if counts else None)

    async def _member_beside(self, described: RunDescription) -> BulkMember | None:
        """The saga that an open bulk workflow runs under the id of this closed run, which is of another saga, or has
        another input.
        """
        if workflow_id_problem(described.run.id) is not None:
            return None  # no claim has such an id, and a database may not even read it
        claim = None
        with contextlib.suppress(LedgerUnavailable):  # Temporal knows the run
            claim = await self.ledger.bulk_claim(described.run.id)
        if claim is None:
            return None
        if described.run.workflow_type == claim.saga:
            with contextlib.suppress(UnreadableRunInput):  # then nobody can say that the claim is that of this run
                digest = input_digest(await first_input(self.temporal, described, self.keys))
                if may_equal(claim.input_digest, digest):
                    return None
        [member] = await self.members([claim])
        return member if member.open else None

    async def _ended_before(self, run: RunInfo) -> Location | None:
        """The location of a saga that had ended before this run under its id, which has done nothing, and closed from
        outside; None otherwise. A reset has made the run, or any client has started it, if the saga had completed: else
        a start may be that of its next generation.
        """
        keys = self.keys
        if keys is None or not keys.keys:
            return None
        ended, state, between = await self._ended_run(run)
        row = None
        if ended is None:
            with contextlib.suppress(LedgerUnavailable):
                row = await self.ledger.find(run.id)
            if row is None or row.view.state != "COMPLETED" or row.started_at >= run.start_time:
                return None
            between = [each for each in between if each.start_time >= row.started_at]
        bases = [] if ended is None else [ended.run.run_id, *(each.run_id for each in between)]
        only_resets = ended is not None and state != "COMPLETED"
        for each in (run, *between):  # the saga may have been started again before the last reset
            if await may_have_effects(self.temporal, each, keys, bases=bases, only_resets=only_resets):
                return None
        if ended is None:
            assert row is not None
            return Location(run.id, row, await counted_undo(self, run.id, row.view.saga, row.started_at))
        if only_resets:
            later = await self._beyond_temporal(run.id, ended.run.close_time)
            return later if later.home is not None else Location(run.id, ended)
        return Location(run.id, ended, await self.undo_of(ended.run))

    async def _ended_run(self, run: RunInfo) -> tuple[RunDescription | None, str | None, list[RunInfo]]:
        """The last run of the id before this one that has ended by itself, as a worker of the project has signed, with
        its state; and the runs after it that were closed from outside.
        """
        between: list[RunInfo] = []
        async for other in list_runs(self.temporal, keyword_condition("WorkflowId", run.id)):
            if other.id != run.id or other.start_time >= run.start_time:
                continue
            if other.ended_from_outside:
                between.append(other)
            if not other.ended_by_itself:
                continue
            outcome = await outcome_of(self, other)
            if outcome.is_believed and not was_refused(other):
                later = [each for each in between if each.start_time >= other.start_time]
                has_ended = outcome.state == "COMPLETED" or outcome.state in STARTED_AGAIN
                described = await describe_run(self.temporal, run.id, other.run_id) if has_ended else None
                return described, outcome.state, later
        return None, None, between

    async def _undone_row(self, run: RunInfo, view: SagaView) -> RunRow | None:
        """The row of a completed saga that was undone since, by a run that Temporal has deleted."""
        with contextlib.suppress(LedgerUnavailable):
            row = await self.ledger.find_story(
                run.id,
                saga=run.workflow_type,
                generation=view.generation or 1,
                input_digest=None,
                root_start=await nested_root_start(run),
            )
            ended_at = None if row is None else read_timestamp(row.view.ended_at)
            is_later = ended_at is not None and run.close_time is not None and ended_at >= run.close_time
            if row is not None and is_later and row.view.state in STARTED_AGAIN:
                return row
        return None


def start_with_input(saga_id: str, saga: str = "NAME") -> str:
    """The command that starts a saga of which no database has the input."""
    return saga_command("start", saga, id=saga_id, input="@FILE")


@asynccontextmanager
async def using_locator(
    temporal: Temporal, settings: Settings, project: Project | None = None
) -> AsyncIterator[Locator]:
    """A locator with the project's ledger, which is closed at the end of the block."""
    async with using_ledger(settings) as ledger:
        yield Locator(temporal, ledger, settings, project=project)
