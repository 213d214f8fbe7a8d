"""The body of `POST /sagas/NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from saga_workers.serve.limits import MAX_WAIT
from saga_workers.serve.request_body import BadRequest
from sagas.definition.times import parse_duration
from sagas.errors import did_you_mean
from sagas.text.json_values import parse_json

_FIELDS = ("id", "input", "wait")


@dataclass(frozen=True, slots=True)
class StartBody:
    """``wait``: seconds to wait for the end of the saga; 0 answers at once."""

    input: Any
    id: str | None
    wait: float


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
