"""The board: how the sagas of the project stand, and what keeps them from going on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.schedules.schedule_status import paused_notes
from saga_workers.serve.console.console_project import ConsoleProject
from saga_workers.serve.console.html_responses import html_response
from saga_workers.serve.console.recent import Recent
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import Visitor
from saga_workers.temporal.temporal_runs import count_pollers, no_poller_message
from saga_workers.topics.kafka_use import uses_kafka
from saga_workers.views.given_up import given_up_reasons, read_given_up
from saga_workers.views.held_counts import LIST_ONE_BY_ONE, HeldCounts, count_held
from saga_workers.views.parked import ParkedList, read_parked
from saga_workers.views.saga_counts import SagaCounts, count_sagas
from saga_workers.views.saga_list import SagaFilter
from sagas.errors import SagaError
from sagas.protocol.standing_pause import StandingPause
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command

_ORDER = (
    "PARKED",
    "RUNNING",
    "COMMITTED",
    "COMPENSATING",
    "COMPLETED",
    "COMPENSATED",
    "RESIDUE",
    "TERMINATED",
    "FAILED",
)
_MOST_ASKED = 16
"""Parked sagas that are asked since when they wait."""

_MOST_GIVEN_UP = 10
"""Sagas that are shown with a notification or an event that was given up."""

_WAIT = 8.0
_MESSAGING_WAIT = 2.0


@dataclass(frozen=True, slots=True)
class Holds:
    """The orders that hold sagas back, and how many wait for each. ``problem``: why they are not known."""

    pauses: Sequence[StandingPause] = ()
    breakers: Sequence[StandingPause] = ()
    counts: HeldCounts = field(default_factory=HeldCounts)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PausedSchedule:
    """``note`` says by whom it was paused, and why."""

    saga: str
    note: str

    @property
    def resume_command(self) -> str:
        return saga_command("schedule", "resume", self.saga)


@dataclass(frozen=True, slots=True)
class Schedules:
    """The paused ones. ``problem``: why they are not known."""

    paused: Sequence[PausedSchedule] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Messaging:
    """The outboxes as `saga relay --status` has them, and a sentence for each reader of topics, with whether it is
    well.
    """

    outboxes: Sequence[dict[str, Any]] = ()
    readers: Sequence[tuple[bool, str]] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The sagas with a notification or an event that was given up, with the reason of each. ``problem``: why they are
    not known.
    """

    sagas: Sequence[tuple[str, str]] = ()
    problem: str | None = None


class BoardPage:
    """The first page of the console."""

    def __init__(self, project: ConsoleProject) -> None:
        self._project = project
        temporal = project.locator.temporal
        self._counts = Recent(lambda: count_sagas(temporal, project.task_queue), 3.0)
        self._parked = Recent(self._read_parked, 10.0)
        self._holds = Recent(self._read_holds, 3.0)
        self._schedules = Recent(self._read_schedules, 10.0)
        self._workers = Recent(lambda: count_pollers(temporal, project.task_queue), 3.0)
        self._messaging = Recent(self._read_messaging, 15.0)
        self._given_up = Recent(self._read_given_up, 15.0)

    async def show(self, _: Request, visitor: Visitor) -> Response:
        counts, parked, holds, schedules, workers, (messaging, given_up) = await asyncio.gather(
            self._counts.get(_WAIT),
            self._parked.get(_WAIT),
            self._holds.get(_WAIT),
            self._schedules.get(_WAIT),
            self._workers.get(_WAIT),
            asyncio.gather(self._messaging.get(_MESSAGING_WAIT), self._given_up.get(_MESSAGING_WAIT)),
        )
        page = render(
            "board.html",
            "Board",
            visitor=visitor,
            place="board",
            states=_rows(counts),
            counts=counts,
            oldest=_oldest(parked),
            holds=holds,
            list_one_by_one=LIST_ONE_BY_ONE,
            schedules=schedules,
            no_worker=no_poller_message(self._project.task_queue) if workers == 0 else None,
            workers=workers,
            messaging=messaging,
            given_up=given_up,
        )
        return html_response(200, page)

    async def _read_parked(self) -> ParkedList:
        criteria = SagaFilter(task_queue=self._project.task_queue)
        return await read_parked(self._project.locator.within_temporal(), criteria, limit=_MOST_ASKED)

    async def _read_holds(self) -> Holds:
        locator = self._project.locator
        try:
            pauses, breakers = await locator.ledger.pauses(), await locator.ledger.open_breakers()
        except LedgerUnavailable as error:
            return Holds(problem=error.message)
        orders = [pause.order for pause in (*pauses, *breakers)]
        criteria = SagaFilter(task_queue=self._project.task_queue)
        return Holds(pauses, breakers, await count_held(locator.temporal, criteria, orders))

    async def _read_schedules(self) -> Schedules:
        try:
            notes = await paused_notes(self._project.locator.temporal, self._project.project)
        except RPCError as error:
            return Schedules(problem=f"the schedules cannot be read: {error.message}")
        return Schedules([PausedSchedule(saga, printable_line(note)) for saga, note in sorted(notes.items())])

    async def _read_given_up(self) -> GivenUp:
        criteria = SagaFilter(task_queue=self._project.task_queue)
        try:
            views = await read_given_up(self._project.locator, criteria, _MOST_GIVEN_UP)
        except RPCError as error:
            return GivenUp(problem=f"what was given up cannot be read: {error.message}")
        return GivenUp([(view.id, reason) for view in views for reason in given_up_reasons(view)])

    async def _read_messaging(self) -> Messaging:
        if not await asyncio.to_thread(uses_kafka, self._project.project):
            return Messaging()
        from saga_workers.relay.relay_status import relay_status

        try:
            status = await relay_status(self._project.settings)
            return Messaging(status["outboxes"], await self._reader_sentences())
        except (SagaError, RPCError, TimeoutError) as error:
            return Messaging(problem=error.message if isinstance(error, SagaError) else "no answer in time")

    async def _reader_sentences(self) -> list[tuple[bool, str]]:
        from saga_activities.kafka.admin import KafkaAdmin
        from saga_workers.doctor.reader_checks import check_positions, reply_groups
        from saga_workers.trigger.project_readers import project_readers

        project = self._project.project
        groups = [*project_readers(project), *await reply_groups(project)]

        def read() -> list[tuple[bool, str]]:
            cluster = KafkaAdmin(self._project.settings.kafka)
            sentences = []
            for group in groups:
                try:
                    sentences.append((True, check_positions(cluster, [group])))
                except SagaError as error:
                    sentences.append((False, error.message))
            return [(is_well, sentence) for is_well, sentence in sentences if sentence != "none"]

        return await asyncio.to_thread(read)


def _rows(counts: SagaCounts | None) -> list[tuple[str, int]]:
    return [] if counts is None else [(state, counts.states[state]) for state in _ORDER]


def _oldest(parked: ParkedList | None) -> str | None:
    """The time since which the oldest parked operation waits."""
    return min((row.since for row in parked.operations), default=None) if parked is not None else None
