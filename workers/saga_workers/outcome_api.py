"""`saga serve`: the outcome of a saga over HTTP, for clients with the token. Read-only."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, Counter, generate_latest
from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.runtime.http_server import (
    HealthServer,
    HttpServer,
    PageContent,
    ServerRequest,
    ServerResponse,
    error_response,
    json_response,
    live_page,
    temporal_ready_page,
)
from saga_workers.runtime.shutdown import stop_on_signals
from saga_workers.temporal.temporal_client import connect
from saga_workers.views.saga_view import read_view
from sagas.errors import UsageError
from sagas.settings import Settings
from sagas.settings.secrets import parse_secret, resolve_secret

log = logging.getLogger("saga.serve")

OUTCOME_FIELDS = (
    "id",
    "saga",
    "state",
    "phase",
    "reason",
    "output",
    "started_at",
    "committed_at",
    "ended_at",
    "incomplete",
)
"""The fields of a view that are public: neither the input nor the results of steps are exposed."""

MAX_CONCURRENT_QUERIES = 32
"""Maximum concurrent queries to Temporal; further ones wait."""

REQUEST_TIMEOUT = 15.0
"""Seconds until a request times out, including the wait for its turn."""

_QUERY_TIMEOUT = timedelta(seconds=3)


def requests_counter(registry: CollectorRegistry) -> Counter:
    return Counter("saga_serve_requests_total", "Requests for outcomes, by status.", ["status"], registry=registry)


class OutcomeApi:
    """Answers requests. ``token`` returns the secret for each request, so that a changed one needs no restart."""

    def __init__(self, temporal: Client, token: Callable[[], str]) -> None:
        self._temporal = temporal
        self._token = token
        self._query_slots = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)
        self._registry = CollectorRegistry()
        self._requests = requests_counter(self._registry)

    async def handle(self, request: ServerRequest) -> ServerResponse:
        response = await self._route(request)
        self._requests.labels(str(response.status)).inc()
        return response

    async def metrics(self) -> PageContent:
        """The page /metrics."""
        return 200, generate_latest(self._registry).decode()

    async def _route(self, request: ServerRequest) -> ServerResponse:
        try:
            welcome = self._is_authorized(request.headers.get("authorization", ""))
        except UsageError as error:
            log.error("nobody is answered: %s", error.message)
            return error_response(503, "the token of this endpoint cannot be read; its log has more")
        if not welcome:
            sentence = "this needs the header Authorization: Bearer TOKEN, with the token of [serve] in saga.toml"
            return error_response(401, sentence, {"WWW-Authenticate": "Bearer"})
        match [unquote(part) for part in request.path.split("/")[1:]]:
            case ["sagas", saga_id] if saga_id:
                return await self._respond(saga_id, _outcome)
            case ["sagas", saga_id, "notifications"] if saga_id:
                return await self._respond(saga_id, lambda story: story["notifications"])
        return error_response(404, "there is no such page; there are /sagas/ID and /sagas/ID/notifications")

    def _is_authorized(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        # Compared in constant time, so that the response time does not reveal how much of the token was right.
        right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token().encode())
        return scheme.lower() == "bearer" and right

    async def _respond(self, saga_id: str, select: Callable[[Mapping[str, Any]], Any]) -> ServerResponse:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT), self._query_slots:
                story = await read_view(self._temporal, saga_id, timeout=_QUERY_TIMEOUT)
        except UsageError as error:
            return error_response(404, error.message)
        except RPCError as error:
            return error_response(503, f"Temporal does not answer: {error.message}", {"Retry-After": "5"})
        except TimeoutError:
            return error_response(503, "Temporal does not answer in time", {"Retry-After": "5"})
        return json_response(200, select(story))


def _outcome(story: Mapping[str, Any]) -> dict[str, Any]:
    return {name: story.get(name) for name in OUTCOME_FIELDS}


def token_reader(settings: Settings) -> Callable[[], str]:
    """A function that returns the token of ``[serve]``. Raises UsageError if it is missing, empty, or not a secret."""
    written = settings.serve.get("token")
    if not isinstance(written, Mapping):
        raise UsageError(
            "There is no [serve] token, which callers of `saga serve` need."
            if written is None
            else "serve.token must say where the token is that callers need, not what it is.",
            help='[serve] token = {env = "SAGA_SERVE_TOKEN"} or {file = "path"} in saga.toml',
        )
    secret = parse_secret(written, "serve.token")

    def read() -> str:
        text = resolve_secret(secret, setting="serve.token", root=settings.root).strip()
        if not text:
            raise UsageError("serve.token is empty, so anybody could ask.")
        return text

    read()
    return read


async def run_outcome_api(settings: Settings, listen: str, *, health: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises UsageError without a token or if a port is taken, ServerDownError without a server.
    """
    token = token_reader(settings)
    stop = stop_on_signals()
    client = await connect(settings)
    server = OutcomeApi(client, token)
    async with AsyncExitStack() as stack:
        if health is not None:
            pages = {"/livez": live_page, "/readyz": lambda: temporal_ready_page(client), "/metrics": server.metrics}
            await stack.enter_async_context(HealthServer(health, pages))
        listening = await stack.enter_async_context(
            HttpServer(listen, server.handle, option="--listen", description="the query endpoint")
        )
        log.info("serving the outcomes of sagas of %s on port %d", client.namespace, listening.port)
        await stop.wait()
        log.info("stopping")
