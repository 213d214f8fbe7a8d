"""`POST /sagas/NAME`: starts a saga, and waits for its end if the caller wants that."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.input_checks import INPUT_CHECKS
from saga_workers.bulk.acceptance import NotClaimed
from saga_workers.client import Client
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.runtime.http_server import error_response, json_response
from saga_workers.serve.access_log import AccessLog
from saga_workers.serve.admission import Admission
from saga_workers.serve.api_tokens import Caller
from saga_workers.serve.error_responses import bad_request, ledger_is_down, temporal_is_down
from saga_workers.serve.limits import QUERY_TIMEOUT
from saga_workers.serve.project_sagas import ProjectSagas
from saga_workers.serve.public_outcome import public_outcome
from saga_workers.serve.request_body import BadRequest, checked_in_time, longest_body, read_body
from saga_workers.serve.shared_outcomes import SharedOutcomes
from saga_workers.serve.start_request import StartBody, parse_start
from saga_workers.start.existing_sagas import AlreadyEnded, Unverified
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_requests import StartResult
from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.run_results import wait_for_result
from saga_workers.temporal.temporal_runs import NoAnswer
from saga_workers.views.saga_view import read_ended_view, read_view
from sagas.bulk.batchable import why_not_shared
from sagas.errors import RefusedError, UsageError
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.settings.serve import ServeSettings


class StartEndpoint:
    """Starts sagas; none without ``client``.

    With ``bulk_wait`` in the settings, which needs the ledger, starts that arrive while others are under way share a
    workflow.
    """

    def __init__(
        self,
        locator: Locator,
        client: Client | None,
        sagas: ProjectSagas,
        settings: ServeSettings,
        admission: Admission,
        access_log: AccessLog,
    ) -> None:
        self._locator = locator
        self._client = client
        self._sagas = sagas
        self._access_log = access_log
        self._bulk_wait = settings.bulk_wait
        self._max_body_bytes = settings.max_body_bytes
        self._admission = admission
        self._outcomes = SharedOutcomes(locator.temporal, locator.ledger)
        self._shared: dict[str, SharedStarts] = {}

    async def answer(self, request: Request) -> Response:
        caller: Caller = request.state.caller
        name = unquote(request.path_params["name"])
        if self._client is None or not await self._sagas.define(name):
            return error_response(404, "there is no such saga in this project")
        if not caller.starts.take():
            return error_response(429, "too many starts with this token; try again", {"Retry-After": "1"})
        try:
            with self._admission.bodies.hold(caller.name, longest_body(request, self._max_body_bytes)):
                started, wait = await self._read_and_start(self._client, request, caller, name)
            return await self._started_response(started, wait, caller)
        except BadRequest as error:
            return bad_request(error)
        except AlreadyEnded as error:
            return json_response(409, {"error": error.message, "state": error.state})
        except RefusedError as error:
            return error_response(409, error.message)
        except NotClaimed as error:
            message = "no worker has claimed the saga in time; repeat the start with its id"
            return json_response(503, {"error": message, "id": error.saga_id}, {"Retry-After": "5"})
        except NoAnswer as error:
            return error_response(503, error.message, {"Retry-After": "5"})
        except LedgerUnavailable as error:
            return ledger_is_down(error, name)
        except (RPCError, TimeoutError) as error:
            return temporal_is_down(error)

    async def _read_and_start(
        self, client: Client, request: Request, caller: Caller, name: str
    ) -> tuple[StartResult, float]:
        """The started saga, and for how many seconds the caller waits for its end. Nothing of the body is kept."""
        sent = await read_body(request, self._max_body_bytes)
        parse = partial(parse_start, request.headers.get("content-type", ""), sent)
        body = await checked_in_time(INPUT_CHECKS.run(parse, caller=caller.name, size=len(sent)))
        del sent, parse
        return await self._start_once(client, caller, name, body), body.wait

    async def _start_once(self, client: Client, caller: Caller, name: str, body: StartBody) -> StartResult:
        """Raises BadRequest if the input or the id is not valid, RefusedError if the id belongs to another start."""
        try:
            async with self._admission.start(caller.name):
                starter = await client.starter(name)
            start = await checked_in_time(starter.check(body.input, caller=caller.name))
            shared = self._shared_starts(client, starter)
            with self._access_log.start(caller.name, start.id if body.id is None else body.id) as recorded:
                async with self._admission.start(caller.name, shared=shared is not None):
                    return recorded(await (starter if shared is None else shared).start(start, id=body.id))
        except UsageError as error:
            raise BadRequest(422, error.message) from None

    def _shared_starts(self, client: Client, starter: SagaStarter) -> SharedStarts | None:
        """Return what gathers the starts of this saga; None if each has a workflow of its own."""
        definition = starter.definition
        if self._bulk_wait <= 0 or not client.ledger.configured or why_not_shared(definition):
            return None
        if definition.saga not in self._shared:
            self._shared[definition.saga] = SharedStarts(starter, wait=self._bulk_wait, callers_return=True)
        return self._shared[definition.saga]

    async def _started_response(self, started: StartResult, wait: float, caller: Caller) -> Response:
        """202 while the saga runs, 200 with its outcome once it has ended."""
        view = None
        if started.bulk_id is not None:
            view = await self._wait_shared(started.bulk_id, started.id, wait, caller) if wait > 0 else None
        elif started.completed:
            async with self._admission.start(caller.name):
                view = await read_view(self._locator, started.id, timeout=QUERY_TIMEOUT)
        elif wait > 0 and await self._wait(started.id, wait):
            view = await self._read_ended(started.id, caller)
        if view is not None and view.is_unverified:
            raise Unverified(started.id)
        outcome = public_outcome(view) if view is not None and view.state in FINAL_STATES else None
        document = {"id": started.id, "run_id": started.run_id, "started": started.started, "outcome": outcome}
        location = f"/sagas/{quote(started.id, safe='')}"
        return json_response(202 if outcome is None else 200, document, {"Location": location})

    async def _read_ended(self, saga_id: str, caller: Caller) -> SagaView:
        async with self._admission.start(caller.name):
            return await read_ended_view(self._locator, saga_id, QUERY_TIMEOUT)

    async def _wait_shared(self, bulk_id: str, saga_id: str, seconds: float, caller: Caller) -> SagaView | None:
        """The view of a saga of a bulk workflow, if it ends within this time."""
        if self._admission.waits.locked():
            return None
        began = time.monotonic()
        async with self._admission.waits:
            try:
                async with asyncio.timeout(seconds):
                    view = await self._outcomes.wait(bulk_id, saga_id)
            except (TimeoutError, asyncio.CancelledError):  # as in _wait
                return None
        if view is not None:
            return view
        try:
            has_left = await self._wait(saga_id, seconds - (time.monotonic() - began))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None  # its bulk workflow was terminated
        return await self._read_ended(saga_id, caller) if has_left else None

    async def _wait(self, saga_id: str, seconds: float) -> bool:
        """Return whether the saga ends within this time, and before the server stops.

        Only the end of the server's grace cancels a request, and the caller shall get the id of its saga.
        """
        if self._admission.waits.locked():
            return False
        async with self._admission.waits:
            try:
                async with asyncio.timeout(seconds):
                    await wait_for_result(self._locator.temporal.get_workflow_handle(saga_id))
            except (TimeoutError, asyncio.CancelledError):
                return False
            except (WorkflowFailureError, *UNREADABLE_PAYLOAD):
                pass
        return True
