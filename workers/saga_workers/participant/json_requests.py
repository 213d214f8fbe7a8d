"""Reads the JSON body of a participant's request, within limits, and answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.runtime.http_server import error_response
from sagas.text.exact_json import RepeatedName
from sagas.text.json_values import parse_json

MAX_BODY_BYTES = 64 * 1024
BODY_TIMEOUT = 10.0
"""Seconds until a request's body must have arrived."""


async def answer_json(request: Request, answer: Callable[[Any], Awaitable[Response]]) -> Response:
    """The response of ``answer`` to the request's JSON, None for an empty body; 400, 408 or 413 if there is none."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    return error_response(413, f"a body may have {MAX_BODY_BYTES} bytes", {"Connection": "close"})
        value = parse_json(bytes(body)) if body else None
    except TimeoutError:
        return error_response(408, "the body did not arrive in time", {"Connection": "close"})
    except RepeatedName as error:
        return error_response(400, f"the body cannot be read: {error}")
    except ValueError:
        return error_response(400, "the body is not JSON")
    return await answer(value)
