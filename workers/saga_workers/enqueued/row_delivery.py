"""Delivers one row: starts its saga once, or signals it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

from temporalio.service import RPCError

from saga_activities.input_checks import INPUT_CHECKS
from saga_activities.input_limits import MAX_ENQUEUED_BYTES, MAX_ENQUEUED_NAME
from saga_workers.bulk.acceptance import NotClaimed
from saga_workers.client import Client
from saga_workers.enqueued.enqueued_table import EnqueuedRow
from saga_workers.interventions import check_signal
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.location import Location
from saga_workers.runtime.current_definitions import CurrentDefinitions
from saga_workers.signals.signal_delivery import Signal, SignalDelivery
from saga_workers.start.existing_sagas import AlreadyEnded
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_requests import StartRequest
from saga_workers.temporal.machine_query import read_definition
from saga_workers.temporal.refusals import refusal_reason
from saga_workers.temporal.temporal_runs import NoAnswer, RunInfo
from sagas.bulk.batchable import why_not_shared
from sagas.definition.model import Definition
from sagas.definition.saga_ids import SAGA_NAME
from sagas.errors import SagaError, UsageError
from sagas.expressions.work_budget import TooComplex
from sagas.input_limits import MAX_SAGA_ID_BYTES
from sagas.project import Project
from sagas.protocol.payloads import input_digest
from sagas.text.json_values import parse_json
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

T = TypeVar("T")
Outcome = Literal["started", "existed", "signalled"]

CLOCK_TOLERANCE = 1.0
"""Seconds by which the clocks of the database and of Temporal may differ."""

MAX_SINGLE_STARTS = 64
"""Starts with a workflow of their own, and signals, that are sent at once."""


class RowRefused(Exception):
    """The row can never be delivered as it is; the text is the reason."""


class DeliveryUnavailable(Exception):
    """A server or a setting that the delivery needs cannot be used; the text says which. It is tried without limit."""


class RowDelivery:
    """Delivers the rows of the database of one connection. ``connect`` is called for the first row, and again until it
    has succeeded.
    """

    def __init__(self, connection: str, project: Project, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connection, self._project, self._connect = connection, project, connect
        self._current = CurrentDefinitions(project)
        self._allowed = project.settings.enqueue.sagas.get(connection)
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._signals: SignalDelivery | None = None
        self._shared: dict[str, SharedStarts] = {}
        self._places = asyncio.Semaphore(MAX_SINGLE_STARTS)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def deliver(self, row: EnqueuedRow) -> Outcome:
        """Raises RowRefused, DeliveryUnavailable, and any other exception if it may be tried again a few times."""
        if (problem := _problem(row)) is not None:
            raise RowRefused(problem)
        if row.saga is not None:
            self._check_saga(row.saga)
        client = await self._connected()
        try:
            return await (self._start(client, row) if row.signal is None else self._signal(client, row, row.signal))
        except RPCError as error:
            if (reason := refusal_reason(error, row.size)) is not None:
                raise RowRefused(f"Temporal refuses the request: {reason}") from error
            raise DeliveryUnavailable(f"Temporal does not answer: {error.message}") from error
        except (LedgerUnavailable, NoAnswer, NotClaimed) as error:
            raise DeliveryUnavailable(error.message) from error

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None:
                try:
                    self._client = await self._connect()
                except SagaError as error:
                    raise DeliveryUnavailable(error.message) from error
            return self._client

    async def _start(self, client: Client, row: EnqueuedRow) -> Outcome:
        definition = await self._definition(row.saga)
        try:
            starter = await client.starter(definition.saga)
        except UsageError as error:  # of the settings: no row is to blame
            raise DeliveryUnavailable(error.message) from error
        try:
            request = replace(await self._read(row, partial(_request, starter, row.input)), event=self._identity(row))
            saga_id = row.saga_id or request.id or f"{definition.saga}-{row.uid}"
            shared = self._shared_starts(client, starter)
            if shared is not None:
                result = await shared.start(request, id=saga_id)
            else:
                async with self._places:
                    result = await starter.start(request, id=saga_id)
        except AlreadyEnded as ended:
            if self._may_have_started(row, ended):
                return "existed"
            raise RowRefused(
                f"{ended.saga_id} was not started by this row, and has ended {ended.state}: only --again starts it"
                " again, as a new generation"
            ) from None
        except UsageError as error:
            raise RowRefused(error.message) from error
        return "started" if result.started else "existed"

    def _identity(self, row: EnqueuedRow) -> str:
        """The digest by which a saga knows the row again that has started it."""
        # Not the id of the row, which SQLite gives again after the row is deleted.
        return input_digest(f"{self._connection}/saga_enqueued/{row.uid}")

    def _may_have_started(self, row: EnqueuedRow, ended: AlreadyEnded) -> bool:
        """True if this row may have started the saga, by a delivery before. Of one that was started in a bulk workflow,
        or that only the ledger has, nothing but its time tells.
        """
        if ended.event is not None:
            return ended.event == self._identity(row)
        return ended.started_at is None or row.created_at <= ended.started_at.timestamp() + CLOCK_TOLERANCE

    def _shared_starts(self, client: Client, starter: SagaStarter) -> SharedStarts | None:
        wait, saga = self._project.settings.enqueue.bulk_wait, starter.definition.saga
        if wait <= 0 or not client.ledger.configured or why_not_shared(starter.definition):
            return None
        if saga not in self._shared:
            self._shared[saga] = SharedStarts(starter, wait=wait)
        return self._shared[saga]

    async def _signal(self, client: Client, row: EnqueuedRow, name: str) -> Outcome:
        assert row.saga_id is not None
        if row.saga is not None:
            await self._definition(row.saga)
        if self._signals is None:
            self._signals = SignalDelivery(client.locator, self._project.settings.kafka.max_signals)
        text = row.input
        data = None if text is None else await self._read(row, partial(_parsed, text))
        # Not the id of the row, which SQLite gives again after the row is deleted.
        signal = Signal(row.saga_id, name, data, f"{self._connection}/saga_enqueued/{row.uid}")
        async with self._places:
            await self._signals.deliver(
                signal, row.saga, partial(self._check_name, client, name), partial(self._check_located, row.saga_id)
            )
        return "signalled"

    def _check_saga(self, saga: str | None) -> None:
        """Refuse a saga that the rows of this connection may not start or signal."""
        if self._allowed is not None and saga not in self._allowed:
            name = printable_line(shorten(saga or ""))
            raise RowRefused(f"[enqueue.sagas] of saga.toml does not name {name!r} for {self._connection}")

    async def _check_located(self, saga_id: str, location: Location) -> None:
        """Refuse a signal to anything but a saga of the project: a namespace also has other workflows.

        A run outlives a definition that was deleted, or that this process cannot use; then its task queue tells.
        """
        saga = location.saga
        self._check_saga(saga)
        if await self._known(saga) is not None:
            return
        is_saga = saga is not None and re.fullmatch(SAGA_NAME, saga) is not None
        if not is_saga or not location.is_on(self._project.settings.temporal.task_queue):
            raise RowRefused(f"{printable_line(saga_id)} is not a saga of this project")

    async def _check_name(self, client: Client, name: str, run: RunInfo) -> None:
        """Refuse a signal that no `wait` of the run takes: it would be lost without a trace."""
        definition = self._project.definitions.get(run.workflow_type)
        if definition is not None and _signal_problem(definition, name) is None:
            return
        # The run may have been started with another version.
        started_with = await read_definition(client.temporal, run, self._project.settings)
        if started_with is None:
            raise DeliveryUnavailable(f"no worker says whether {run.id} has a wait for the signal")
        if (problem := _signal_problem(started_with, name)) is not None:
            raise RowRefused(problem)

    async def _known(self, saga: str | None) -> Definition | None:
        """The definition of a saga as the files have it now; None if there is none that this process can use."""
        name = saga or ""
        return (await self._current.read()).get(name) or (await self._current.read_now()).get(name)

    async def _definition(self, saga: str | None) -> Definition:
        definition = await self._known(saga)
        if definition is None:
            raise RowRefused(
                f"the project has no saga {printable_line(shorten(saga or ''))!r} that this process can use; after new "
                "actions or settings restart it, then retry the row"
            )
        return definition

    async def _read(self, row: EnqueuedRow, call: Callable[[], T]) -> T:
        """Read the JSON within the budget of the process: who writes to the table is one caller."""
        try:
            return await INPUT_CHECKS.run(call, caller=("enqueued", self._connection), size=row.size)
        except TooComplex as error:
            raise RowRefused(error.message) from None


def _signal_problem(definition: Definition, name: str) -> str | None:
    """Why no `wait` takes a signal of this name; None if one does."""
    try:
        check_signal(definition, name)
    except UsageError as error:
        return error.message
    return None


def _request(starter: SagaStarter, text: str | None) -> StartRequest:
    return starter.make_request({} if text is None else _parsed(text))


def _parsed(text: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise RowRefused(f"`input` is not JSON: {printable_line(shorten(str(error)))}") from None


def _problem(row: EnqueuedRow) -> str | None:
    """Why nobody could deliver the row."""
    if row.unreadable:
        return row.unreadable
    if row.size > MAX_ENQUEUED_BYTES:
        return f"`input` has {row.size:,} bytes, and may have {MAX_ENQUEUED_BYTES:,}"
    for name, value in (("saga", row.saga), ("signal_name", row.signal)):
        if value is not None and len(value) > MAX_ENQUEUED_NAME:
            return f"`{name}` has more than {MAX_ENQUEUED_NAME} characters"
    if row.saga_id is not None and len(row.saga_id) > MAX_SAGA_ID_BYTES:
        return f"`saga_id` has more than {MAX_SAGA_ID_BYTES} characters"
    for name, value in (("saga", row.saga), ("saga_id", row.saga_id), ("signal_name", row.signal)):
        if value is not None and not value.strip():
            return f"`{name}` is empty: a column that is not used must be NULL"
    if row.signal is None:
        return "`saga` is missing: the name of the saga that is to be started" if row.saga is None else None
    return "`saga_id` is missing: the id of the saga that is to be signalled" if row.saga_id is None else None
