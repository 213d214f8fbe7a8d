"""The Python client: start sagas and follow them.

client = await Client.connect()
run = await client.start("checkout", {"basket_id": "b-1", …})
output = await run.result()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from sagas.errors import RefusedError, SagaError, UsageError
from sagas.project import Project
from sagas.settings import load_settings
from sagas.wire import UNDO_SUFFIX
from workers.starting import start
from workers.stories import read_story, run_link
from workers.temporal_client import connect


class SagaFailed(SagaError):
    """The saga ended without completing; ``story`` is its `saga show` document."""

    def __init__(self, story: Mapping[str, Any]) -> None:
        reason = story.get("reason") or {}
        super().__init__(f"{story['id']} is {story['state']}: {reason.get('message') or reason.get('kind') or '…'}")
        self.story = dict(story)


@dataclass(frozen=True)
class Run:
    """One saga. ``started`` is False when a run with this id was there before."""

    id: str
    run_id: str
    started: bool
    web_ui: str | None
    client: Client

    async def result(self) -> Any:
        """Wait for the end and return the saga's output. Raises SagaFailed when it did not complete."""
        handle = self.client.temporal.get_workflow_handle(self.id)
        try:
            return await handle.result()
        except WorkflowFailureError as error:
            raise SagaFailed(await self.story()) from error

    async def story(self) -> dict[str, Any]:
        """The `saga show` document."""
        return await self.client.show(self.id)


class Client:
    """Starts and steers the sagas of one project."""

    def __init__(self, temporal: Temporal, project: Project) -> None:
        self.temporal = temporal
        self.project = project
        self._attributes: tuple[str, ...] | None = None

    @staticmethod
    async def connect(project: Project | None = None) -> Client:
        """Connect with the settings of the current folder (or of ``project``). Raises UsageError: no server."""
        project = project or Project(load_settings())
        return Client(await connect(project.settings), project)

    async def start(self, saga: str, input: Any, *, id: str | None = None, again: bool = False) -> Run:
        """Start a saga, or find the run its id already has.

        Raises UsageError: unknown saga or invalid input. RefusedError: the id is taken by another saga or input, or its
        run was undone (``again`` starts a new generation) or terminated.
        """
        settings = self.project.settings
        started = await start(
            self.temporal,
            self.project.definition(saga),
            input,
            task_queue=settings.temporal.task_queue,
            id=id,
            again=again,
            variables=settings.vars,
            attributes=await self.attributes(),
        )
        link = run_link(settings.temporal.web_ui, self.temporal.namespace, started.id, started.run_id)
        return Run(started.id, started.run_id, started.started, link, self)

    async def show(self, saga_id: str) -> dict[str, Any]:
        """The `saga show` document. Raises UsageError when there is no such saga."""
        return await read_story(self.temporal, saga_id, web_ui=self.project.settings.temporal.web_ui)

    async def cancel(self, saga_id: str, *, reason: str = "", who: str | None = None) -> str:
        """Ask for the undo of a running saga: ``accepted``, ``recorded`` (the pivot is in flight) or ``already``.

        Raises RefusedError past the point of no return, or when the saga is over.
        """
        answer = await self._update(saga_id, "cancel", {"reason": reason, "who": who})
        if answer not in ("accepted", "recorded", "already"):
            raise RefusedError(f"{saga_id} cannot be cancelled: {answer}")
        return answer

    async def signal(
        self, saga_id: str, name: str, data: Any = None, *, who: str | None = None, reject: str | None = None
    ) -> None:
        """Answer a `wait` of the saga. ``reject`` refuses with that text instead of answering."""
        message = {"_saga": {"by": who, "reject": reject}, "data": data}
        await self.temporal.get_workflow_handle(saga_id).signal(name, message)

    async def resolve(self, saga_id: str, decision: Mapping[str, Any]) -> dict[str, Any]:
        """Decide about a stuck step. Raises RefusedError when the decision is not possible."""
        return await self._update(saga_id, "resolve", dict(decision))

    async def undo(self, saga_id: str, *, reason: str, who: str) -> Run:
        """Take a completed saga back. Raises RefusedError when it cannot be undone."""
        story = await self.show(saga_id)
        if story["state"] != "COMPLETED":
            raise RefusedError(f"{saga_id} is {story['state']}; only a COMPLETED saga can be undone")
        if not story.get("can_undo"):
            raise RefusedError(f"{saga_id} is past the point of no return and cannot be undone")
        handle = await self.temporal.start_workflow(
            story["saga"],
            {"reason": reason, "who": who},
            id=saga_id + UNDO_SUFFIX,
            task_queue=self.project.settings.temporal.task_queue,
            static_summary=f"undo of {saga_id}: {reason}",
        )
        run_id = handle.first_execution_run_id or ""
        link = run_link(self.project.settings.temporal.web_ui, self.temporal.namespace, handle.id, run_id)
        return Run(handle.id, run_id, True, link, self)

    async def attributes(self) -> tuple[str, ...]:
        """The search attributes of the engine that this namespace has; asked once."""
        if self._attributes is None:
            request = ListSearchAttributesRequest(namespace=self.temporal.namespace)
            answer = await self.temporal.operator_service.list_search_attributes(request)
            self._attributes = tuple(sorted(name for name in answer.custom_attributes if name.startswith("Saga")))
        return self._attributes

    async def _update(self, saga_id: str, name: str, argument: Any) -> Any:
        handle = self.temporal.get_workflow_handle(saga_id)
        try:
            return await handle.execute_update(name, argument)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError):
                raise RefusedError(f"{saga_id}: {cause.message}") from None
            raise UsageError(f"{saga_id} did not take the {name}: {cause}") from error
