"""The HTTP API of `saga serve`: start sagas, and read their outcomes. It needs a token, and no worker."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from prometheus_client import CollectorRegistry, Counter
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.input_checks import INPUT_CHECKS
from saga_workers.bulk.acceptance import NotClaimed
from saga_workers.client import Client
from saga_workers.input_limits import CHECK_TIMEOUT, MAX_CODEC_BYTES, MAX_CONNECTIONS
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator, using_locator
from saga_workers.runtime.health import health_server, temporal_readiness
from saga_workers.runtime.http_server import HttpServer, RequestFilter, error_response, http_app, json_response
from saga_workers.runtime.logs import fields
from saga_workers.runtime.shutdown import stop_on_signals
from saga_workers.serve.api_tokens import Caller, Callers, TooManyFailures
from saga_workers.serve.callbacks import CallbackReceiver
from saga_workers.serve.codec_endpoint import (
    CODEC_PATHS,
    CodecCors,
    CodecEndpoint,
    allowed_origins,
    is_codec_path,
    token_in_path,
)
from saga_workers.serve.limits import (
    MAX_CONCURRENT_REQUESTS,
    MAX_SHARED_STARTS,
    QUERY_TIMEOUT,
    REQUEST_TIMEOUT,
)
from saga_workers.serve.openapi import openapi_document
from saga_workers.serve.public_outcome import public_notifications, public_outcome
from saga_workers.serve.shared_outcomes import SharedOutcomes
from saga_workers.serve.start_request import BadRequest, StartBody, parse_start, read_body
from saga_workers.serve.waiting_bodies import WaitingBodies
from saga_workers.start.existing_sagas import AlreadyEnded
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_requests import StartResult
from saga_workers.temporal.payload_codec import payload_codec
from saga_workers.temporal.temporal_client import connect
from saga_workers.views.saga_view import read_view
from sagas.builtins.callbacks import MAX_CALLBACK_BYTES
from sagas.bulk.batchable import why_not_shared
from sagas.definition.saga_ids import SAGA_NAME, workflow_id_problem
from sagas.errors import RefusedError, UsageError
from sagas.project import Project
from sagas.protocol.callback_address import CALLBACK_PATH
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.settings import Settings
from sagas.settings.serve import Scope, ServeSettings
from sagas.settings.signing_keys import SigningKeys

log = logging.getLogger("saga.serve")


_Checked = TypeVar("_Checked")

_TOO_MANY_WRONG = "too many wrong tokens from this address; try again"


def requests_counter(registry: CollectorRegistry) -> Counter:
    return Counter("saga_serve_requests_total", "Requests to `saga serve`, by status.", ["status"], registry=registry)


class SagaApi:
    """Answers requests. Without ``client`` no saga can be started, without ``keys`` no callback is received.

    With ``bulk`` in the settings, which needs the ledger, starts that arrive while others are under way share a
    workflow.
    """

    def __init__(
        self,
        locator: Locator,
        callers: Callers,
        client: Client | None = None,
        *,
        sagas: Collection[str] = (),
        settings: ServeSettings,
        keys: SigningKeys | None = None,
        codec: CodecEndpoint | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        self._locator = locator
        self._temporal = locator.temporal
        self._bulk_wait = settings.bulk_wait
        self._outcomes = SharedOutcomes(locator.temporal, locator.ledger)
        self._shared: dict[str, SharedStarts] = {}
        self._callers = callers
        self._client = client
        self._sagas = sagas
        self._max_body_bytes = settings.max_body_bytes
        self._request_slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._wait_slots = asyncio.Semaphore(settings.max_waiting)
        self._shared_slots = asyncio.Semaphore(MAX_SHARED_STARTS)
        self._bodies = WaitingBodies()
        self._callbacks = CallbackReceiver(locator.temporal, keys or SigningKeys())
        self._codec = codec
        self.requests = requests_counter(CollectorRegistry())
        app = http_app(
            [
                Route("/sagas/{id}", self._show_outcome),
                Route("/sagas/{id}/notifications", self._show_notifications),
                Route("/sagas/{name}", self._start, methods=["POST"]),
                Route("/openapi.json", self._show_openapi),
                Route(CALLBACK_PATH, self._receive_callback, methods=["POST"]),
                *(Route(path, self._convert_payloads, methods=["POST"]) for path in CODEC_PATHS if codec is not None),
            ],
            [Middleware(RequestFilter, refusal=self._refusal, answered=self._count)],
            max_body_bytes=self._max_body_bytes if codec is None else max(self._max_body_bytes, MAX_CODEC_BYTES),
        )
        self.app = app if codec is None else CodecCors(app, origins)

    def _count(self, status: int) -> None:
        self.requests.labels(str(status)).inc()

    def _refusal(self, request: Request) -> Response | None:
        if request.scope["path"].startswith("/callbacks/"):
            return None  # a participant has no token but that of the address
        try:
            address = request.client.host if request.client is not None else ""
            caller = self._callers.identify(_authorization(request), address)
        except TooManyFailures:
            return error_response(429, _TOO_MANY_WRONG, {"Retry-After": "1"})
        except UsageError as error:
            log.error("the API token cannot be read: %s", error.message)
            return error_response(503, "the token of this endpoint cannot be read; see its log")
        if caller is None:
            message = "send the header Authorization: Bearer TOKEN with a token of [serve] in saga.toml"
            return error_response(401, message, {"WWW-Authenticate": "Bearer"})
        request.state.caller = caller
        needed = _needed_scope(request)
        if needed not in caller.scopes:
            return error_response(403, f"this token does not have the scope {needed}")
        return None

    # --- reading -----------------------------------------------------------------------------------------------

    async def _show_outcome(self, request: Request) -> Response:
        return await self._respond(request, public_outcome)

    async def _show_notifications(self, request: Request) -> Response:
        return await self._respond(request, public_notifications)

    async def _respond(self, request: Request, select: Callable[[SagaView], Any]) -> Response:
        saga_id = unquote(request.path_params["id"])
        if (problem := workflow_id_problem(saga_id)) is not None:
            return error_response(404, problem)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT), self._request_slots:
                view = await self._read_view(saga_id)
                if not self._answers_for(view.saga):
                    raise await self._locator.unknown_saga(saga_id)
        except UsageError as error:
            return error_response(404, error.message)
        except LedgerUnavailable as error:
            return _ledger_is_down(error, saga_id)
        except (RPCError, TimeoutError) as error:
            return _temporal_is_down(error)
        return json_response(200, select(view))

    def _answers_for(self, saga: str) -> bool:
        """True for the sagas of the project; without definitions every run may be one whose type is such a name."""
        return saga in self._sagas if self._sagas else re.fullmatch(SAGA_NAME, saga) is not None

    async def _read_view(self, saga_id: str) -> SagaView:
        return await read_view(self._locator, saga_id, timeout=QUERY_TIMEOUT)

    async def _show_openapi(self, request: Request) -> Response:
        caller: Caller = request.state.caller
        startable = self._client is not None and "start" in caller.scopes
        definitions = self._client.project.definitions if self._client is not None and startable else {}
        return json_response(200, openapi_document(definitions))

    async def _receive_callback(self, request: Request) -> Response:
        """Hand the answer of a participant to its saga: 200 once the saga has it."""
        saga, call, token = (request.path_params[name] for name in ("saga", "call", "token"))
        address = request.client.host if request.client is not None else ""
        try:
            called = self._callbacks.called_back(saga, call, token, self._callers.failed(address))
            with self._bodies.hold("callbacks", MAX_CALLBACK_BYTES):
                body = await read_body(request, MAX_CALLBACK_BYTES)
                async with asyncio.timeout(REQUEST_TIMEOUT), self._request_slots:
                    receipt = await self._callbacks.hand_over(called, request.headers, body)
        except TooManyFailures:
            return error_response(429, _TOO_MANY_WRONG, {"Retry-After": "1", "Connection": "close"})
        except BadRequest as error:
            retry = {"Retry-After": "5"} if error.status == 503 else {}
            return error_response(error.status, str(error), {"Connection": "close", **retry})
        except (RPCError, TimeoutError) as error:
            return _temporal_is_down(error)
        return json_response(200, {"status": receipt})

    async def _convert_payloads(self, request: Request) -> Response:
        """Answer Temporal's Web UI or CLI."""
        assert self._codec is not None
        caller: Caller = request.state.caller
        try:
            with self._bodies.hold(caller.name, MAX_CODEC_BYTES):
                body = await read_body(request, MAX_CODEC_BYTES)
                converting = self._codec.convert(request.path_params["operation"], body, caller=caller.name)
                return json_response(200, await _in_time(converting))
        except BadRequest as error:
            return error_response(error.status, str(error), {"Connection": "close"})

    # --- starting ----------------------------------------------------------------------------------------------

    async def _start(self, request: Request) -> Response:
        caller: Caller = request.state.caller
        name = unquote(request.path_params["name"])
        if self._client is None or name not in self._client.project.definitions:
            return error_response(404, "there is no such saga in this project")
        if not caller.starts.take():
            return error_response(429, "too many starts with this token; try again", {"Retry-After": "1"})
        try:
            with self._bodies.hold(caller.name, self._longest_body(request)):
                started, wait = await self._read_and_start(self._client, request, caller, name)
            return await self._started_response(started, wait)
        except BadRequest as error:
            retry = {"Retry-After": "5"} if error.status == 503 else {}
            return error_response(error.status, str(error), {"Connection": "close", **retry})
        except AlreadyEnded as error:
            return json_response(409, {"error": error.message, "state": error.state})
        except RefusedError as error:
            return error_response(409, error.message)
        except NotClaimed as error:
            message = "no worker has claimed the saga in time; repeat the start with its id"
            return json_response(503, {"error": message, "id": error.saga_id}, {"Retry-After": "5"})
        except LedgerUnavailable as error:
            return _ledger_is_down(error, name)
        except (RPCError, TimeoutError) as error:
            return _temporal_is_down(error)

    def _longest_body(self, request: Request) -> int:
        """The bytes of its body; without a length those that it may have."""
        length = request.headers.get("content-length", "")
        return int(length) if length.isdecimal() else self._max_body_bytes

    async def _read_and_start(
        self, client: Client, request: Request, caller: Caller, name: str
    ) -> tuple[StartResult, float]:
        """The started saga, and for how many seconds the caller waits for its end. Nothing of the body is kept."""
        sent = await read_body(request, self._max_body_bytes)
        parse = partial(parse_start, request.headers.get("content-type", ""), sent)
        body = await _in_time(INPUT_CHECKS.run(parse, caller=caller.name, size=len(sent)))
        del sent, parse
        return await self._start_once(client, caller, name, body), body.wait

    async def _start_once(self, client: Client, caller: Caller, name: str, body: StartBody) -> StartResult:
        """Raises BadRequest if the input or the id is not valid, RefusedError if the id belongs to another start."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT), self._request_slots:
                starter = await client.starter(name)
            start = await _in_time(starter.check(body.input, caller=caller.name))
            shared = self._shared_starts(client, starter)
            slots = self._request_slots if shared is None else self._shared_slots
            async with asyncio.timeout(REQUEST_TIMEOUT), slots:
                return await (starter if shared is None else shared).start(start, id=body.id)
        except UsageError as error:
            raise BadRequest(422, error.message) from None

    def _shared_starts(self, client: Client, starter: SagaStarter) -> SharedStarts | None:
        """Return what gathers the starts of this saga; None if each has a workflow of its own."""
        definition = starter.definition
        if self._bulk_wait <= 0 or not client.ledger.configured or why_not_shared(definition):
            return None
        if definition.saga not in self._shared:
            self._shared[definition.saga] = SharedStarts(starter, wait=self._bulk_wait)
        return self._shared[definition.saga]

    async def _started_response(self, started: StartResult, wait: float) -> Response:
        """202 while the saga runs, 200 with its outcome once it has ended."""
        view = None
        if started.bulk_id is not None:
            view = await self._wait_shared(started.bulk_id, started.id, wait) if wait > 0 else None
        elif started.completed or (wait > 0 and await self._wait(started.id, wait)):
            view = await self._read_ended(started.id)
        outcome = public_outcome(view) if view is not None and view.state in FINAL_STATES else None
        document = {"id": started.id, "run_id": started.run_id, "started": started.started, "outcome": outcome}
        location = f"/sagas/{quote(started.id, safe='')}"
        return json_response(202 if outcome is None else 200, document, {"Location": location})

    async def _read_ended(self, saga_id: str) -> SagaView:
        async with asyncio.timeout(REQUEST_TIMEOUT), self._request_slots:
            return await self._read_view(saga_id)

    async def _wait_shared(self, bulk_id: str, saga_id: str, seconds: float) -> SagaView | None:
        """The view of a saga of a bulk workflow, if it ends within this time."""
        if self._wait_slots.locked():
            return None
        began = time.monotonic()
        async with self._wait_slots:
            try:
                async with asyncio.timeout(seconds):
                    view = await self._outcomes.wait(bulk_id, saga_id)
            except TimeoutError:
                return None
        if view is not None:
            return view
        try:
            has_left = await self._wait(saga_id, seconds - (time.monotonic() - began))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None  # its bulk workflow was terminated
        return await self._read_ended(saga_id) if has_left else None

    async def _wait(self, saga_id: str, seconds: float) -> bool:
        """Return whether the saga ends within this time."""
        if self._wait_slots.locked():
            return False
        async with self._wait_slots:
            try:
                async with asyncio.timeout(seconds):
                    await self._temporal.get_workflow_handle(saga_id).result()
            except TimeoutError:
                return False
            except WorkflowFailureError:
                pass
        return True


def _authorization(request: Request) -> str:
    """The header Authorization of the request; for a codec path with a token, the header that has this token."""
    path = request.scope["path"]
    token = token_in_path(path) if is_codec_path(path) else None
    return request.headers.get("authorization", "") if token is None else f"Bearer {unquote(token)}"


def _needed_scope(request: Request) -> Scope:
    if is_codec_path(request.scope["path"]):
        return "decode"
    return "start" if request.method == "POST" else "read"


async def _in_time(checking: Awaitable[_Checked]) -> _Checked:
    """Return what the check of an input returns. Raises BadRequest if this input, or earlier ones of its caller, take
    too long.
    """
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            return await checking
    except TimeoutError:
        message = "the inputs that were sent with this token take too long to check; try again"
        raise BadRequest(503, message) from None


def _temporal_is_down(error: RPCError | TimeoutError) -> Response:
    reason = f": {error.message}" if isinstance(error, RPCError) else " in time"
    return error_response(503, f"Temporal does not answer{reason}", {"Retry-After": "5"})


def _ledger_is_down(error: LedgerUnavailable, about: str) -> Response:
    log.warning("Temporal does not know the saga, and %s", error.message, extra=fields(saga=about))
    return error_response(503, "the ledger does not answer", {"Retry-After": "5"})


MAX_BULK_WAIT = 1.0
"""Seconds."""


def check_bulk(settings: Settings) -> None:
    """Raise UsageError if starts are to share workflows in a project without a ledger, or after too long a wait."""
    if settings.serve.bulk_wait > MAX_BULK_WAIT:
        raise UsageError(
            f"serve.bulk_wait is longer than {MAX_BULK_WAIT:g}s, for which callers would wait for each other",
            help='write a duration such as bulk_wait = "250ms"',
        )
    if settings.serve.bulk_wait > 0 and settings.ledger.connection is None:
        raise UsageError(
            "serve.bulk_wait needs a ledger, which keeps the states of sagas that share a workflow",
            help="set [ledger] connection in saga.toml, and run saga setup",
        )


async def run_api(settings: Settings, listen: str, *, health: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises UsageError without a token, if a setting is not possible, or if a port is taken; ServerDownError without a
    server.
    """
    callers = Callers(settings)
    check_bulk(settings)
    stop = stop_on_signals()
    temporal = await connect(settings)
    project = Project(settings)
    client = Client(temporal, project) if callers.may_start else None
    sagas = await asyncio.to_thread(lambda: frozenset(project.definitions))
    async with AsyncExitStack() as stack:
        locator = await stack.enter_async_context(using_locator(temporal, settings))
        if client is not None:
            stack.push_async_callback(client.close)
        keys = settings.signing_keys(create=False)
        codec = payload_codec(settings)
        api = SagaApi(
            locator,
            callers,
            client,
            sagas=sagas,
            settings=settings.serve,
            keys=keys,
            codec=None if codec is None else CodecEndpoint(codec),
            origins=allowed_origins(settings),
        )
        if health is not None:
            ready = partial(temporal_readiness, temporal)
            await stack.enter_async_context(health_server(health, stop=stop, ready=ready, metrics=(api.requests,)))
        listening = await stack.enter_async_context(
            HttpServer(
                listen,
                api.app,
                option="--listen",
                description="the API",
                max_connections=max(MAX_CONNECTIONS, 2 * settings.serve.max_waiting),
            )
        )
        log.info("serving sagas over HTTP", extra=fields(namespace=temporal.namespace, port=listening.port))
        await stop.wait()
        log.info("stopping")
