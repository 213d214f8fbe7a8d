"""The activity of a redelivery, in a worker of the project: it starts a compensated saga again, for its event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from saga_workers.location.locator import Locator
from saga_workers.start.existing_sagas import AlreadyEnded, event_of
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.start_requests import StartResult
from saga_workers.temporal.saga_input import read_input
from saga_workers.views.saga_view import read_view
from sagas.definition.model import Definition
from sagas.errors import RefusedError, UsageError
from sagas.protocol.saga_view import FINAL_STATES

_AGAIN = "it has been started again meanwhile"


class RedeliveredStarts:
    """Starts the next generation of sagas, with the definition that the project has by then.

    ``definition`` reads a definition as the files have it now; ``make_starter`` makes the starter of one.
    """

    def __init__(
        self,
        locator: Locator,
        definition: Callable[[str], Awaitable[Definition]],
        make_starter: Callable[[Definition], Awaitable[SagaStarter]],
    ) -> None:
        self._locator = locator
        self._definition = definition
        self._make_starter = make_starter

    async def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """``started``; or ``open``, if the run that has ordered it has not closed yet; or ``ended`` with the reason why
        nothing is started; or ``refused`` with the reason.

        Raises SagaError and RPCError if it may succeed later.
        """
        try:
            return await self._start(request)
        except (UsageError, RefusedError) as error:
            return {"refused": error.message}

    async def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        saga_id, generation = request["saga_id"], request["generation"]
        view = await read_view(self._locator, saga_id)
        if (view.generation or 1) > generation:
            return {"ended": _AGAIN}
        if view.state not in FINAL_STATES:
            return {"open": True}
        if view.state != "COMPENSATED":
            return {"ended": f"it is {view.state}"}
        definition = await self._definition(request["saga"])
        if not any(trigger.redeliver for trigger in definition.triggers):
            return {"ended": "no trigger of the saga has `redeliver` any more"}
        try:
            result = await self._start_again(definition, request)
        except AlreadyEnded:
            return {"ended": _AGAIN}
        return {"started": True} if result.started else {"ended": _AGAIN}

    async def _start_again(self, definition: Definition, request: Mapping[str, Any]) -> StartResult:
        saga_id = request["saga_id"]
        described = (await self._locator.within_temporal().locate(saga_id)).run
        if described is None:
            raise RefusedError(f"Temporal has deleted the run of {saga_id}, and with it the input")
        read = await read_input(self._locator.temporal, described, self._locator.keys)
        starter = await self._make_starter(definition)
        start = replace(
            await starter.check(read.value),
            event=await event_of(described.run),
            redelivery={"intervals": request["intervals"], "passed": request["passed"] + 1},
        )
        return await starter.start(start, id=saga_id, again=True, after=request["generation"])
