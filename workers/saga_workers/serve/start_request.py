"""The body of `POST /sagas/NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from saga_workers.serve.limits import MAX_WAIT
from saga_workers.serve.request_body import BadRequest, parse_object
from sagas.definition.times import parse_duration

_FIELDS = ("id", "input", "wait")


@dataclass(frozen=True, slots=True)
class StartBody:
    """``wait``: seconds to wait for the end of the saga; 0 answers at once."""

    input: Any
    id: str | None
    wait: float


def parse_start(content_type: str, body: bytes) -> StartBody:
    """Parse ``{"input": …, "id": "…", "wait": "30s"}``; all are optional. Raises BadRequest."""
    value = parse_object(content_type, body, _FIELDS, '{"input": {}, "id": "order-1", "wait": "30s"}')
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
