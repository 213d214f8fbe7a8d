"""Temporal's codec endpoint: its Web UI and its CLI send encrypted payloads here and show what comes back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from temporalio.api.common.v1 import Payload

from saga_activities.input_checks import INPUT_CHECKS
from saga_activities.value_cipher import UnknownKey
from saga_workers.input_limits import MAX_CODEC_BYTES, MAX_CODEC_PAYLOADS
from saga_workers.runtime.http_server import json_response
from saga_workers.serve.access_log import AccessLog
from saga_workers.serve.admission import Admission
from saga_workers.serve.api_tokens import Caller
from saga_workers.serve.error_responses import bad_request
from saga_workers.serve.request_body import BadRequest, checked_in_time, read_body
from saga_workers.temporal.payload_codec import EncryptingCodec
from sagas.expressions.work_budget import charge
from sagas.settings import Settings
from sagas.text.json_values import parse_json

_PREFIX = "/codec/"

_STEPS_OF_PAYLOAD = 10
"""Evaluation steps that take about as much time as reading or converting a payload."""

_Value = TypeVar("_Value")

CODEC_PATHS = (_PREFIX + "{operation}", _PREFIX + "{token}/{operation}")
"""Paths of the endpoint; ``operation`` is ``decode`` or ``encode``."""


def is_codec_path(path: str) -> bool:
    """True for the paths of the endpoint."""
    return path.startswith(_PREFIX)


def token_in_path(path: str) -> str | None:
    """The token in ``/codec/TOKEN/decode``. The Web UI has no other place for it, unless people sign in there."""
    token, separator, _ = path.removeprefix(_PREFIX).partition("/")
    return token if separator else None


class CodecEndpoint:
    """Decrypts and encrypts payloads in the form of Temporal's remote codecs: ``{"payloads": […]}``."""

    def __init__(self, codec: EncryptingCodec, admission: Admission, access_log: AccessLog) -> None:
        self._codec = codec
        self._admission = admission
        self._access_log = access_log

    async def answer(self, request: Request) -> Response:
        """Answer Temporal's Web UI or CLI."""
        caller: Caller = request.state.caller
        try:
            with self._admission.bodies.hold(caller.name, MAX_CODEC_BYTES):
                body = await read_body(request, MAX_CODEC_BYTES)
                operation = request.path_params["operation"]
                converted = await checked_in_time(self._convert(operation, body, caller=caller.name))
                if operation == "decode":
                    namespace = request.headers.get("x-namespace", "")
                    self._access_log.decoded(caller.name, namespace, len(converted["payloads"]))
                return json_response(200, converted)
        except BadRequest as error:
            return bad_request(error)

    async def _convert(self, operation: str, body: bytes, *, caller: str) -> dict[str, Any]:
        """The answer to ``decode`` or ``encode``. Raises BadRequest, also for another operation."""
        if operation not in ("decode", "encode"):
            raise BadRequest(404, "the codec has the pages decode and encode")
        convert = self._codec.decrypt if operation == "decode" else self._codec.encrypt

        def converted() -> list[dict[str, Any]]:
            return [_written(convert(payload)) for payload in map(_counted, _payloads(body))]

        try:
            return {"payloads": await INPUT_CHECKS.run(converted, caller=caller, size=len(body))}
        except UnknownKey as error:
            raise BadRequest(422, error.message) from None


def _payloads(body: bytes) -> list[Payload]:
    if body.count(b"{") > 1 + 2 * MAX_CODEC_PAYLOADS:  # before so many objects are made: a payload has one or two
        raise _too_many()
    try:
        value = parse_json(body)
    except ValueError as error:
        raise BadRequest(400, f"the body is not JSON: {error}") from None
    payloads = value.get("payloads") if isinstance(value, Mapping) else None
    if not isinstance(payloads, Sequence) or isinstance(payloads, str):
        raise BadRequest(400, 'the body must be an object, as in {"payloads": [{"metadata": {}, "data": ""}]}')
    if len(payloads) > MAX_CODEC_PAYLOADS:
        raise _too_many()
    return [_payload(_counted(each)) for each in payloads]


def _counted(value: _Value) -> _Value:
    """Count a payload that is converted, so that others are checked meanwhile, and an abandoned conversion ends."""
    charge(_STEPS_OF_PAYLOAD)
    return value


def _too_many() -> BadRequest:
    return BadRequest(413, f"a request may have {MAX_CODEC_PAYLOADS:,} payloads; send several requests")


def _payload(value: Any) -> Payload:
    metadata, data = (value.get("metadata", {}), value.get("data", "")) if isinstance(value, Mapping) else (None, None)
    try:
        if isinstance(metadata, Mapping) and isinstance(data, str):
            plain = {name: base64.b64decode(text, validate=True) for name, text in metadata.items()}
            return Payload(metadata=plain, data=base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError, TypeError):
        pass
    raise BadRequest(400, "a payload must have metadata and data in base64")


def _written(payload: Payload) -> dict[str, Any]:
    metadata = {name: base64.b64encode(value).decode() for name, value in payload.metadata.items()}
    return {"metadata": metadata, "data": base64.b64encode(payload.data).decode()}


class CodecCors:
    """Lets pages of these origins ask the codec endpoint, and no other page."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._with_cors = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=("POST",),
            allow_headers=("authorization", "content-type", "x-namespace"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._with_cors if scope["type"] == "http" and is_codec_path(scope["path"]) else self._app
        await answer(scope, receive, send)


def allowed_origins(settings: Settings) -> tuple[str, ...]:
    """The pages that may ask: those of ``[codec] allowed_origins``, else the Web UI of the settings."""
    if settings.codec.allowed_origins:
        return settings.codec.allowed_origins
    address = urlsplit(settings.temporal.web_ui or "")
    return (f"{address.scheme}://{address.netloc}",) if address.netloc else ()
