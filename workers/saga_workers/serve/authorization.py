"""The requests that the HTTP API answers: those with a token that has the scope for them."""

from __future__ import annotations

import logging
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from saga_workers.runtime.http_server import error_response
from saga_workers.serve.api_tokens import Callers, TooManyFailures
from saga_workers.serve.codec_endpoint import is_codec_path, token_in_path
from saga_workers.serve.console_path import is_console_path
from saga_workers.serve.error_responses import too_many_wrong_tokens
from saga_workers.serve.openapi_operators import OPERATION_PATHS
from sagas.errors import UsageError
from sagas.settings.serve import Scope

log = logging.getLogger("saga.serve")

_OPERATIONS = tuple(compile_path(path)[0] for path in OPERATION_PATHS.values())


class Authorization:
    """Lets through the requests of callers, who are in ``request.state.caller`` then."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def refusal(self, request: Request) -> Response | None:
        """The response to a request that no endpoint may see; None if its caller may send it."""
        if request.scope["path"].startswith("/callbacks/"):
            return None  # a participant has no token but that of the address
        if is_console_path(request.scope["path"]):
            return None  # a browser has a session, which each of these pages looks for
        try:
            caller = self._callers.identify(_authorization(request), client_address(request))
        except TooManyFailures:
            return too_many_wrong_tokens()
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


def client_address(request: Request) -> str:
    """The address from which the request comes; empty if it is not known."""
    return request.client.host if request.client is not None else ""


def _authorization(request: Request) -> str:
    """The header Authorization of the request; for a codec path with a token, the header that has this token."""
    path = request.scope["path"]
    token = token_in_path(path) if is_codec_path(path) else None
    return request.headers.get("authorization", "") if token is None else f"Bearer {unquote(token, 'latin-1')}"


def _needed_scope(request: Request) -> Scope:
    if is_codec_path(request.scope["path"]):
        return "decode"
    if request.method != "POST":
        return "read"
    is_operation = any(path.match(request.scope["path"]) for path in _OPERATIONS)
    return "operate" if is_operation else "start"
