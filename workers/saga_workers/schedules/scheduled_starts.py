"""The activities of scheduled starts, in a worker of the project: they start sagas as every other start does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from saga_workers import interventions
from saga_workers.location.locator import Locator
from saga_workers.schedules.final_states import final_state
from saga_workers.schedules.slot_request import slot_request
from saga_workers.start.existing_sagas import AlreadyEnded, StartedWithOtherInput
from saga_workers.start.saga_starter import SagaStarter
from sagas.definition.model import Definition
from sagas.errors import RefusedError, UsageError
from sagas.input_limits import MAX_CANCEL_WORDS
from sagas.protocol.payloads import SLOT_ACTIVITY, SLOT_STATE_ACTIVITY


class ScheduledStarts:
    """Starts the sagas of schedules, and looks after them.

    ``definition`` reads a definition as the files have it now; ``make_starter`` makes the starter of one.
    """

    def __init__(
        self,
        locator: Locator,
        definition: Callable[[str], Awaitable[Definition]],
        make_starter: Callable[[Definition], Awaitable[SagaStarter]],
        variables: Mapping[str, Any],
        task_queue: str,
    ) -> None:
        self._locator = locator
        self._task_queue = task_queue
        self._definition = definition
        self._make_starter = make_starter
        self._variables = variables
        self._starters: dict[str, SagaStarter] = {}

    async def __call__(self, activity_type: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request. Raises SagaError and RPCError if it may succeed later."""
        if activity_type == SLOT_ACTIVITY:
            return await self._start(request["saga"], datetime.fromisoformat(request["scheduled_at"]))
        if activity_type == SLOT_STATE_ACTIVITY:
            return {"state": await final_state(self._locator, request["id"])}
        return await self._cancel(request["id"], request["reason"], request["saga"])

    async def _start(self, saga: str, scheduled_at: datetime) -> dict[str, Any]:
        """``id``, ``started`` and, if it has ended before, ``state``; or ``refused`` with the reason.

        A saga that has the id already is the one of this time, whatever its input was.
        """
        try:
            starter = await self._starter(await self._definition(saga))
            request, id = await slot_request(starter, self._variables, scheduled_at.astimezone(UTC))
            try:
                started = await starter.start(request, id=id)
            except (AlreadyEnded, StartedWithOtherInput) as error:
                await self._refuse_other_project(id)
                return {"id": id, "started": False, "state": error.state}
            if not started.started:
                await self._refuse_other_project(id)
        except (UsageError, RefusedError) as error:
            return {"refused": error.message}
        return {"id": id, "started": started.started, "state": "COMPLETED" if started.completed else None}

    async def _refuse_other_project(self, saga_id: str) -> None:
        """Raise RefusedError if the saga that has the id belongs to a project with another task queue."""
        location = await self._locator.within_temporal().locate(saga_id)
        queue = None if location.run is None else location.run.run.task_queue
        if queue not in (None, self._task_queue):
            raise RefusedError(
                f"the id {saga_id} belongs to a saga of the task queue {queue}; give the schedule an `id` of its own"
            )

    async def _starter(self, definition: Definition) -> SagaStarter:
        starter = self._starters.get(definition.saga)
        if starter is None or starter.definition is not definition:
            starter = self._starters[definition.saga] = await self._make_starter(definition)
        return starter

    async def _cancel(self, saga_id: str, reason: str, saga: str) -> dict[str, Any]:
        try:
            result = await interventions.cancel(
                self._locator, saga_id, reason=reason[:MAX_CANCEL_WORDS], who=f"the schedule of {saga}"
            )
        except (UsageError, RefusedError) as error:
            return {"refused": error.message}
        return {"answer": result.answer}
