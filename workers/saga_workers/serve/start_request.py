"""The body of `POST /sagas/NAME`, and how a refused start is answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request

from saga_workers.input_limits import BODY_TIMEOUT
from saga_workers.serve.limits import MAX_WAIT
from sagas.definition.times import parse_duration
from sagas.errors import did_you_mean
from sagas.text.json_values import parse_json

_FIELDS = ("id", "input", "wait")


class BadRequest(Exception):
    """The request cannot be accepted; ``status`` is the HTTP status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class StartBody:
    """``wait``: seconds to wait for the end of the saga; 0 answers at once."""

    input: Any
    id: str | None
    wait: float


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


def parse_start(content_type: str, body: bytes) -> StartBody:
    """Parse ``{"input": …, "id": "…", "wait": "30s"}``; all are optional. Raises BadRequest."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise BadRequest(415, "send the header Content-Type: application/json")
    try:
        value = parse_json(body)
    except UnicodeDecodeError:
        raise BadRequest(400, "the body is not UTF-8 text") from None
    except ValueError as error:
        raise BadRequest(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(400, 'the body must be an object, as in {"input": {}, "id": "order-1", "wait": "30s"}')
    for name in value:
        if name not in _FIELDS:
            raise BadRequest(400, f"the body has an unknown field {name[:50]!r}{did_you_mean(name[:50], _FIELDS)}")
    saga_id = value.get("id")
    if saga_id is not None and not isinstance(saga_id, str):
        raise BadRequest(400, "id must be a string")
    return StartBody(value.get("input", {}), saga_id, _parse_wait(value.get("wait")))


def _parse_wait(value: Any) -> float:
    if value is None:
        return 0.0
    try:
        seconds = parse_duration(value) if isinstance(value, str) else None
    except ValueError:
        seconds = None
    if seconds is None or seconds > MAX_WAIT:
        raise BadRequest(400, f'wait must be a duration up to {MAX_WAIT:g}s, such as "30s"')
    return seconds
