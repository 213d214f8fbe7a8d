"""The body of a request: it is read within limits of size and time, and refused with a status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from saga_workers.input_limits import BODY_TIMEOUT, CHECK_TIMEOUT
from sagas.errors import did_you_mean
from sagas.text.json_values import parse_json

_Checked = TypeVar("_Checked")


class BadRequest(Exception):
    """The request cannot be accepted; ``status`` is the HTTP status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def longest_body(request: Request, max_bytes: int) -> int:
    """The declared bytes of the body of a request; the most that it may have if none are declared, as for chunks."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else max_bytes


async def with_body(request: Request, max_bytes: int) -> Request:
    """The request with its body, which has arrived: it can be read without a wait. Raises BadRequest as
    :func:`read_body`.
    """
    body = await read_body(request, max_bytes)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body as it was sent. Raises BadRequest if it is too large, too slow, or incomplete."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= max_bytes:
                    body += chunk
                elif size > 2 * max_bytes:
                    break
    except TimeoutError:
        raise BadRequest(408, f"the body must arrive within {BODY_TIMEOUT:g} seconds") from None
    except ClientDisconnect:
        raise BadRequest(400, "the body is incomplete") from None
    if size > max_bytes:
        # A little more has been read and dropped: closing the connection while a client sends would lose the answer.
        raise BadRequest(413, f"the body may have {max_bytes} bytes")
    return bytes(body)


def parse_object(content_type: str, body: bytes, fields: tuple[str, ...], example: str) -> dict[str, Any]:
    """Parse a JSON object that has no other fields. Raises BadRequest."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise BadRequest(415, "send the header Content-Type: application/json")
    try:
        value = parse_json(body)
    except UnicodeDecodeError:
        raise BadRequest(400, "the body is not UTF-8 text") from None
    except ValueError as error:
        raise BadRequest(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(400, f"the body must be an object, as in {example}")
    for name in value:
        if name not in fields:
            raise BadRequest(400, f"the body has an unknown field {name[:50]!r}{did_you_mean(name[:50], fields)}")
    return value


async def checked_in_time(checking: Awaitable[_Checked]) -> _Checked:
    """Return what the check of an input returns. Raises BadRequest if this input, or earlier ones of its caller, take
    too long.
    """
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            return await checking
    except TimeoutError:
        message = "the inputs that were sent with this token take too long to check; try again"
        raise BadRequest(503, message) from None
