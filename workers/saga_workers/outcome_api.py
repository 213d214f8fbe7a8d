"""`saga serve`: the outcome of a saga over HTTP, for clients with the token. Read-only."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, Counter
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.runtime.health import health_server, temporal_readiness
from saga_workers.runtime.http_server import HttpServer, error_response, json_response, read_only_app
from saga_workers.runtime.logs import fields
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
        self.requests = requests_counter(CollectorRegistry())
        self.app = read_only_app(
            [Route("/sagas/{id}", self._show_outcome), Route("/sagas/{id}/notifications", self._show_notifications)],
            [Middleware(BaseHTTPMiddleware, dispatch=self._authorize_and_count)],
        )

    async def _authorize_and_count(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = self._refusal(request.headers.get("authorization", "")) or await call_next(request)
        self.requests.labels(str(response.status_code)).inc()
        return response

    def _refusal(self, authorization: str) -> Response | None:
        try:
            if self._is_authorized(authorization):
                return None
        except UsageError as error:
            log.error("the API token cannot be read: %s", error.message)
            return error_response(503, "the token of this endpoint cannot be read; see its log")
        message = "send the header Authorization: Bearer TOKEN with the token of [serve] in saga.toml"
        return error_response(401, message, {"WWW-Authenticate": "Bearer"})

    def _is_authorized(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        # Compared in constant time, so that the response time does not reveal how much of the token was right.
        right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token().encode())
        return scheme.lower() == "bearer" and right

    async def _show_outcome(self, request: Request) -> Response:
        return await self._respond(request, lambda view: {name: view.get(name) for name in OUTCOME_FIELDS})

    async def _show_notifications(self, request: Request) -> Response:
        return await self._respond(request, lambda view: view["notifications"])

    async def _respond(self, request: Request, select: Callable[[Mapping[str, Any]], Any]) -> Response:
        saga_id = unquote(request.path_params["id"])
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT), self._query_slots:
                view = await read_view(self._temporal, saga_id, timeout=_QUERY_TIMEOUT)
        except UsageError as error:
            return error_response(404, error.message)
        except RPCError as error:
            return error_response(503, f"Temporal does not answer: {error.message}", {"Retry-After": "5"})
        except TimeoutError:
            return error_response(503, "Temporal does not answer in time", {"Retry-After": "5"})
        return json_response(200, select(view.to_json()))


def token_reader(settings: Settings) -> Callable[[], str]:
    """A function that returns the token of ``[serve]``. Raises UsageError if it is missing or empty."""
    written = settings.serve.get("token")
    if written is None:
        raise UsageError(
            "serve.token is missing; callers of `saga serve` need it",
            help='[serve] token = {env = "SAGA_SERVE_TOKEN"} or {file = "path"} in saga.toml',
        )
    secret = parse_secret(written, "serve.token")

    def read() -> str:
        text = resolve_secret(secret, setting="serve.token", root=settings.root).strip()
        if not text:
            raise UsageError("serve.token is empty; callers of `saga serve` need it")
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
    api = OutcomeApi(client, token)
    async with AsyncExitStack() as stack:
        if health is not None:
            ready = partial(temporal_readiness, client)
            await stack.enter_async_context(health_server(health, stop=stop, ready=ready, metrics=(api.requests,)))
        listening = await stack.enter_async_context(
            HttpServer(listen, api.app, option="--listen", description="the query endpoint")
        )
        log.info("serving outcomes of sagas", extra=fields(namespace=client.namespace, port=listening.port))
        await stop.wait()
        log.info("stopping")
