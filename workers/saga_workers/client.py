"""The Python client: start sagas and follow them.

client = await Client.connect()
run = await client.start("checkout", {"basket_id": "b-1", …})
output = await run.result()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, overload

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.concurrency import Backoff
from saga_workers import interventions
from saga_workers.ledger.run_ledger import RunLedger, open_ledger
from saga_workers.location.locator import Locator
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_requests import StartRequest, StartResult
from saga_workers.temporal.data_converter import project_client
from saga_workers.temporal.run_results import wait_for_result
from saga_workers.temporal.search_attributes import existing_attributes
from saga_workers.temporal.temporal_client import connect
from saga_workers.views.run_facts import web_ui_link
from saga_workers.views.saga_view import read_view
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.settings import load_settings

_RESULT_POLLS = Backoff(0.1, 2.0)
"""Seconds between two looks at a saga that a bulk workflow runs."""

_STARTED_AT_ONCE = 50
"""Starts of :meth:`Client.start_many` at once, each with a workflow of its own."""


class SagaFailed(SagaError):
    """The saga ended without completing; ``document`` is its `saga show` document."""

    def __init__(self, view: SagaView) -> None:
        reason = view.reason and (view.reason.message or view.reason.kind)
        super().__init__(f"{view.id} is {view.state}: {reason or '…'}")
        self.document = view.to_json()


@dataclass(frozen=True)
class SagaHandle:
    """One saga. ``started`` is False if a run with this id existed before.

    ``source`` is ``ledger`` if Temporal has no run of it; then ``run_id`` is empty. ``is_compared`` is False if
    it existed before and nobody knows its input any more, so that it may have been started with another one.
    """

    id: str
    run_id: str
    started: bool
    web_ui: str | None
    client: Client
    source: Literal["ledger"] | None = None
    is_compared: bool = True

    async def result(self) -> Any:
        """Wait for the end and return the saga's output. Raises SagaFailed if it did not complete."""
        handle = self.client.temporal.get_workflow_handle(self.id)
        for interval in _RESULT_POLLS:
            try:
                return await wait_for_result(handle)
            except WorkflowFailureError as error:
                view, cause = await self.client.view(self.id), error
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                view, cause = await self.client.view(self.id), error
            if view.bulk_workflow is None or view.state in FINAL_STATES:
                if view.state != "COMPLETED":
                    raise SagaFailed(view) from cause
                return view.output
            await asyncio.sleep(interval)  # a bulk workflow runs it
        raise AssertionError("unreachable")

    async def show(self) -> dict[str, Any]:
        """The `saga show` document."""
        return await self.client.show(self.id)


class Client:
    """Starts and controls the sagas of one project."""

    def __init__(self, temporal: Temporal, project: Project) -> None:
        self.temporal = project_client(temporal, project.settings)
        self.project = project
        self.locator = Locator(self.temporal, open_ledger(project.settings), project.settings, project=project)
        """Finds the sagas of the project, wherever they run."""
        self._search_attributes: tuple[str, ...] | None = None
        self._starters: dict[str, SagaStarter] = {}

    @staticmethod
    async def connect(project: Project | None = None, *, identity: str | None = None) -> Client:
        """Connect with the settings of the current folder or ``project``. Raises UsageError without a server.

        ``identity``: that of the Temporal client; by default the process and the machine.
        """
        project = project or Project(load_settings())
        return Client(await connect(project.settings, identity=identity), project)

    async def start(self, saga: str, input: Any, *, id: str | None = None, again: bool = False) -> SagaHandle:
        """Start a saga, or find the run that its id already has.

        Raises UsageError for an unknown saga or invalid input; RefusedError if the id belongs to another saga or input,
        or its run was undone (``again`` starts a new generation) or terminated.
        """
        starter = await self.starter(saga)
        return self._handle(await starter.start(await starter.check(input), id=id, again=again))

    def _handle(self, started: StartResult) -> SagaHandle:
        web_ui = None if started.source == "ledger" else self.project.settings.temporal.web_ui
        link = web_ui_link(web_ui, self.temporal.namespace, started.bulk_id or started.id, started.run_id)
        return SagaHandle(started.id, started.run_id, started.started, link, self, started.source, started.is_compared)

    async def starter(self, saga: str) -> SagaStarter:
        """A starter for many sagas of one definition, cached until the project has read another one.

        Raises UsageError if the saga is unknown.
        """
        starter, definition = self._starters.get(saga), self.project.definition(saga)
        if starter is None or starter.definition.digest != definition.digest:
            settings = self.project.settings
            attributes = await self.search_attributes()
            queue = settings.temporal.task_queue
            starter = SagaStarter(
                self.locator,
                definition,
                task_queue=queue,
                keys=settings.signing_keys(),
                variables=settings.vars,
                attributes=attributes,
            )
            self._starters[saga] = starter
        return starter

    @overload
    async def start_many(
        self, saga: str, inputs: Sequence[Any], *, bulk: bool = False, return_exceptions: Literal[False] = False
    ) -> list[SagaHandle]: ...

    @overload
    async def start_many(
        self, saga: str, inputs: Sequence[Any], *, bulk: bool = False, return_exceptions: bool
    ) -> list[SagaHandle | Exception]: ...

    async def start_many(
        self, saga: str, inputs: Sequence[Any], *, bulk: bool = False, return_exceptions: bool = False
    ) -> Sequence[SagaHandle | Exception]:
        """Start one saga for each input, or find the runs that their ids already have; one handle for each, in order.

        ``bulk``: many sagas share a workflow, which needs a ledger. An input that cannot be started keeps no other from
        starting. Its error names it: UsageError or RefusedError, as :meth:`start` raises them, or NotClaimed if no
        worker has claimed a shared saga in time, so that one may still refuse it. ``return_exceptions``: as of
        `asyncio.gather`, the errors are in the list, in place of handles; else the first is raised when all others have
        started.
        """
        starter = await self.starter(saga)
        shared = None
        if bulk:
            self.ledger.require()
            shared = SharedStarts(starter)
        places = asyncio.Semaphore(len(inputs) or 1 if bulk else _STARTED_AT_ONCE)

        async def start(request: StartRequest | UsageError) -> SagaHandle:
            if isinstance(request, UsageError):
                raise request
            async with places:
                return self._handle(await (starter.start(request) if shared is None else shared.start(request)))

        checked = [await _checked(starter, input, f"input {n} of {len(inputs)}") for n, input in enumerate(inputs, 1)]
        results = await asyncio.gather(*map(start, checked), return_exceptions=True)
        given: list[SagaHandle | Exception] = []
        for result in results:
            if not (isinstance(result, SagaHandle) or (return_exceptions and isinstance(result, Exception))):
                raise result
            given.append(result)
        return given

    async def show(self, saga_id: str) -> dict[str, Any]:
        """The `saga show` document. Raises UsageError if there is no such saga."""
        return (await self.view(saga_id)).to_json()

    async def view(self, saga_id: str) -> SagaView:
        """The `saga show` document as a typed value. Raises UsageError if there is no such saga."""
        web_ui = self.project.settings.temporal.web_ui
        return await read_view(self.locator, saga_id, web_ui=web_ui)

    async def cancel(self, saga_id: str, *, reason: str = "", who: str | None = None) -> str:
        """Request the rollback of a running saga: ``accepted``, ``recorded`` (the pivot is in flight), ``already``, or
        ``requested`` (Temporal has it, but no worker has answered yet).

        Raises RefusedError past the point of no return, or if the saga has ended.
        """
        return (await interventions.cancel(self.locator, saga_id, reason=reason, who=who)).answer

    async def pause(self, saga_id: str, *, reason: str = "", who: str | None = None) -> SagaView:
        """Stop a running saga from starting calls, in either direction, until :meth:`resume`; those in flight go on.

        Returns the view afterwards. Raises RefusedError if the saga has ended, SagaError if no worker answers.
        """
        return await interventions.pause(self.locator, saga_id, reason=reason, who=who)

    async def resume(self, saga_id: str, *, reason: str = "", who: str | None = None) -> SagaView:
        """Let a paused saga go on; returns the view afterwards. Raises like :meth:`pause`, and if it is not paused."""
        return await interventions.resume(self.locator, saga_id, reason=reason, who=who)

    async def signal(
        self, saga_id: str, name: str, data: Any = None, *, who: str | None = None, reject: str | None = None
    ) -> None:
        """Complete a `wait` of the saga, or reject it with the reason ``reject``.

        Raises UsageError if no `wait` of the saga has this name, or if the data could not be read. If the saga cannot
        be queried, the name is not checked.
        """
        await interventions.signal(self.locator, saga_id, name, data, who=who, reject=reject)

    async def resolve(self, saga_id: str, decision: Mapping[str, Any]) -> dict[str, Any]:
        """Decide about a parked step. Raises RefusedError if the decision is not possible."""
        keys = self.project.settings.signing_keys()
        return (await interventions.resolve(self.locator, saga_id, decision, keys)).to_json()

    async def undo(self, saga_id: str, *, reason: str, who: str) -> SagaHandle:
        """Undo a completed saga. Raises RefusedError if it cannot be undone."""
        queue = self.project.settings.temporal.task_queue
        run_id = await interventions.undo(self.locator, saga_id, reason=reason, who=who, task_queue=queue)
        link = web_ui_link(self.project.settings.temporal.web_ui, self.temporal.namespace, run_id, "")
        return SagaHandle(run_id, "", True, link, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the ledger; without one there is nothing to close."""
        await self.ledger.close()

    @property
    def ledger(self) -> RunLedger:
        """The ledger of the project; in one without, it knows nothing."""
        return self.locator.ledger

    async def search_attributes(self) -> tuple[str, ...]:
        """The search attributes of the engine that this namespace has; cached."""
        if self._search_attributes is None:
            self._search_attributes = tuple(await existing_attributes(self.temporal))
        return self._search_attributes


async def _checked(starter: SagaStarter, input: Any, name: str) -> StartRequest | UsageError:
    try:
        return await starter.check(input)
    except UsageError as error:
        return UsageError(f"{name}: {error.message}", help=error.help)
