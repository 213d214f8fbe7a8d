"""Reads the JSON body of a participant's request, within limits, and answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.runtime.http_server import error_response
from saga_workers.serve.request_body import BadRequest, read_body
from sagas.text.exact_json import RepeatedName
from sagas.text.json_values import parse_json

MAX_BODY_BYTES = 64 * 1024


async def answer_json(request: Request, answer: Callable[[Any], Awaitable[Response]]) -> Response:
    """The response of ``answer`` to the request's JSON, None for an empty body; 400, 408 or 413 if there is none."""
    try:
        body = await read_body(request, MAX_BODY_BYTES)
        value = parse_json(body) if body else None
    except BadRequest as error:
        return error_response(error.status, str(error), {"Connection": "close"})
    except RepeatedName as error:
        return error_response(400, f"the body cannot be read: {error}")
    except ValueError:
        return error_response(400, "the body is not JSON")
    return await answer(value)
