"""One attempt of ``uses: http``: send the request once and decide the outcome, i.e. what is known about its effect.

=========================================  =======================================================================
what happened                              outcome
=========================================  =======================================================================
a status in ``done``                       done
a status in ``rejected``                   rejected
a status in ``done``, ``rejected_when``    rejected
429                                        failed, retried; Retry-After is kept
any other status                           unknown, retried; Retry-After is kept
no response in time, or a lost connection  unknown, retried
a body that cannot be decoded              unknown, retried
nothing was sent (refused, no token)       failed, retried
the arguments are not a valid request      failed, not retried
=========================================  =======================================================================

The outcome is that of this attempt alone: an earlier one may have taken effect and lost its response. A status such as
404 or 503 may come from a proxy in front of the participant, after the participant has acted; only the statuses in
``done`` and ``rejected`` are trusted as the participant's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Literal

import httpx

from saga_activities.http.bounded_stream import UnreadableBodyError
from saga_activities.http.connection import HttpConnection
from saga_activities.http.credentials import CredentialsError
from saga_activities.http.request import HttpRequest, InvalidRequestError, build_request, encode_key
from saga_activities.http.response import (
    MAX_EXCERPT,
    HttpResponse,
    ResultError,
    check_patterns,
    compile_rejection,
    compile_result,
    definite_statuses,
    retry_after,
)
from saga_activities.http.settings import HttpSettings
from sagas.builtins.callbacks import CALLBACK_HEADER
from sagas.builtins.http_headers import CONFIRMS_HEADER, SAGA_ID_HEADER, UNDOES_HEADER
from sagas.builtins.http_statuses import classify_status
from sagas.protocol.outcomes import Failure, Outcome, refused_value
from sagas.protocol.size_limits import limit_size
from sagas.settings.masking import mask
from sagas.sql_text.tokens import shown
from sagas.text.masked_texts import mask_beginning, texts_of_attempt

Op = Literal["do", "undo", "confirm", "probe"]

MAX_QUOTED_BODY = 200
"""Characters of the body in a message."""

MAX_MASKED = 8_000
"""Characters of a body in which credentials are looked for: a hostile body is long."""


async def run_http(
    arguments: Mapping[str, Any],
    *,
    key: str,
    forward_key: str | None = None,
    connection: HttpConnection | None = None,
    timeout: float,
    attempt: int = 1,
    op: Op = "do",
    traceparent: str | None = None,
    callback_address: str | None = None,
    saga_id: str = "",
) -> Outcome:
    """Make one attempt of an HTTP call. Errors of the participant or the definition become the outcome, not exceptions.

    ``key`` is the idempotency key of the operation, ``forward_key`` that of the ``do`` that an undo or a confirm names.
    ``timeout`` (seconds) covers everything: token, connecting, sending and reading. ``attempt`` counts from 1 within
    one call of the machine. ``callback_address``: where the participant may answer later. ``saga_id``:
    empty if no saga calls. The result of a ``probe`` is
    the response object, whatever its status, and no key is sent: a participant would take the probe for a repeated
    ``do``.
    Cancellation propagates: the caller knows whether the worker stops or the saga was cancelled.
    """
    if connection is None:
        async with HttpConnection(HttpSettings("")) as unnamed:
            return await run_http(
                arguments,
                key=key,
                forward_key=forward_key,
                connection=unnamed,
                timeout=timeout,
                attempt=attempt,
                op=op,
                traceparent=traceparent,
                callback_address=callback_address,
                saga_id=saga_id,
            )
    try:
        settings = connection.settings
        request = build_request(arguments, settings.url, connection.managed_headers, settings.allowed_hosts.permits)
        check_patterns(arguments)
        is_rejected = compile_rejection(arguments.get("rejected_when"))
        to_result = compile_result(arguments.get("result"))
    except (InvalidRequestError, ResultError) as error:
        return _no_effect(refused_value(str(error)), attempt, retryable=False)
    call = _HttpAttempt(connection, request, connection.label(request.url), attempt)
    headers = _saga_headers(connection, request, key, forward_key, op, traceparent, saga_id)
    if callback_address is not None:
        headers[CALLBACK_HEADER] = callback_address
    try:
        if op != "probe":
            headers |= connection.sign(request, encode_key(key, settings.key_format))
        async with asyncio.timeout(timeout):
            response = await call.send(headers)
    except TimeoutError:
        waited = f"{round(timeout, 1) or timeout:g} s"  # what the attempt has left, not the round limit of its step
        return call.no_response(
            "HttpTimeout", f"{call.participant} did not respond to {request.target} within {waited}"
        )
    except CredentialsError as error:
        return call.no_response("HttpCredentials", f"{call.participant} was not called ({request.target}): {error}")
    except (httpx.ConnectError, httpx.ProxyError) as error:
        call.reached = call.was_unauthorized
        return call.no_response(
            "HttpConnection", f"{call.participant} cannot be reached for {request.target}: {_error_text(error)}"
        )
    except InvalidRequestError as error:
        return _no_effect(refused_value(str(error)), attempt, retryable=False)
    except (httpx.HTTPError, OSError) as error:
        # A TLS alert after the handshake arrives as a bare SSLError, which is an OSError.
        return call.no_response(
            "HttpConnection",
            f"the connection to {call.participant} broke during {request.target}: {_error_text(error)}",
        )
    except UnreadableBodyError as error:
        return call.no_response(
            "HttpBody", f"{call.participant} responded to {request.target} with a body that cannot be read: {error}"
        )
    if op == "probe":
        return Outcome.done(_probe_result(response), attempt=attempt)
    return call.classify(response, arguments, is_rejected, to_result)


@dataclass(slots=True)
class _HttpAttempt:
    """The state of one attempt. ``reached``: a part of the request may have reached the participant."""

    connection: HttpConnection
    request: HttpRequest
    participant: str
    number: int
    reached: bool = False
    was_unauthorized: bool = False

    async def send(self, headers: Mapping[str, str]) -> HttpResponse:
        """Authenticate and send; if the token is refused, renew it and send once more."""
        credentials = self.connection.credentials
        while True:
            auth = await self.connection.authenticate(self.request)
            self.reached = True
            response = await self.connection.exchange(self.request, {**headers, **auth})
            if (
                response.status != HTTPStatus.UNAUTHORIZED
                or not auth
                or not credentials.renewable
                or self.was_unauthorized
            ):
                return response
            self.was_unauthorized = True
            credentials.forget_token(auth)

    def no_response(self, kind: str, message: str) -> Outcome:
        """The outcome without a response: unknown, unless it is certain that nothing was sent."""
        failure = Failure(kind, self.connection.credentials.mask(message))
        if not self.reached:
            return _no_effect(failure, self.number)
        return Outcome("unknown", failure=failure, attempt=self.number)

    def classify(
        self,
        response: HttpResponse,
        arguments: Mapping[str, Any],
        is_rejected: Callable[[HttpResponse], bool],
        to_result: Callable[[HttpResponse], Any],
    ) -> Outcome:
        """The outcome of a response."""
        body = quotable_body(response)
        failure = Failure(
            "HttpStatus",
            f"{self.participant} responded {response.status_line} to {self.request.target}"
            + (f": `{shown(body, MAX_QUOTED_BODY)}`" if body else ""),
            {"status": response.status} | ({"body": body[:MAX_EXCERPT]} if body else {}),
            quotes=True,
        )
        if 300 <= response.status < 400 and (location := response.headers.get("location")):
            target = mask(location[:MAX_MASKED])
            message = f"{failure.message}, Location: `{shown(target, MAX_QUOTED_BODY)}`"
            failure = replace(failure, message=message)
        delay = retry_after(response)
        rejected = Outcome(
            "rejected", failure=replace(failure, type="Rejected"), attempt=self.number, retry_after=delay
        )
        match classify_status(response.status, arguments):
            case "done":
                return self._done(response, arguments, is_rejected, to_result) or rejected
            case "rejected":
                return rejected
        if definite := definite_statuses(response.status, arguments):
            help = f"; if this answer is a definite no, write `rejected: [{definite}]`"
            failure = replace(failure, message=failure.message + help)
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            return replace(_no_effect(failure, self.number), retry_after=delay)
        return Outcome("unknown", failure=failure, attempt=self.number, retry_after=delay)

    def _done(
        self,
        response: HttpResponse,
        arguments: Mapping[str, Any],
        is_rejected: Callable[[HttpResponse], bool],
        to_result: Callable[[HttpResponse], Any],
    ) -> Outcome | None:
        """The outcome of a status in ``done``; None: the response says that it was refused."""
        try:
            if is_rejected(response):
                return None
        except ResultError as error:
            message = f"{self.participant} responded to {self.request.target}, and it is unknown whether that is a no"
            source = shown(str(arguments.get("rejected_when")), MAX_QUOTED_BODY)
            return self._unusable(response, f"{message}: `rejected_when: {source}` cannot be computed: {error}")
        if response.omitted is not None:
            return Outcome.done(dict(response.omitted), attempt=self.number)
        try:
            return Outcome.done(limit_size(to_result(response)), attempt=self.number)
        except ResultError as error:
            # The effect exists, but later steps would depend on a value that cannot be computed.
            message = f"{self.participant} did {self.request.target}, but its result cannot be computed"
            return self._unusable(response, f"{message}: {error}")

    def _unusable(self, response: HttpResponse, message: str) -> Outcome:
        if body := quotable_body(response):
            message += f"; the body begins `{shown(body, MAX_QUOTED_BODY)}`"
        return Outcome("unknown", failure=Failure("definition", message), attempt=self.number, retryable=False)


def quotable_body(response: HttpResponse) -> str:
    """The beginning of a body of text; it is masked before it is cut, or a half of a sensitive text would stay."""
    if not _is_text(response):
        return ""
    return mask(mask_beginning(response.text, texts_of_attempt(), MAX_MASKED))


def _no_effect(failure: Failure, attempt: int, *, retryable: bool = True) -> Outcome:
    return Outcome("failed", failure=failure, attempt=attempt, retryable=retryable)


def _saga_headers(
    connection: HttpConnection,
    request: HttpRequest,
    key: str,
    forward_key: str | None,
    op: Op,
    traceparent: str | None,
    saga_id: str,
) -> dict[str, str]:
    headers: dict[str, str] = {}
    if connection.settings.key_header and not request.is_read and op != "probe":
        headers[connection.settings.key_header] = encode_key(key, connection.settings.key_format)
        if saga_id and connection.settings.key_format == "key":  # another format does not tell the service the id
            headers[SAGA_ID_HEADER] = encode_key(saga_id)
    names_forward = {"undo": UNDOES_HEADER, "confirm": CONFIRMS_HEADER}.get(op)
    if names_forward is not None and forward_key is not None:
        headers[names_forward] = encode_key(forward_key, connection.settings.key_format)
    if traceparent is not None:
        headers["traceparent"] = traceparent
    return headers


def _probe_result(response: HttpResponse) -> dict[str, Any]:
    seen = response.to_json()
    measured = limit_size(seen)
    return seen if measured is seen else {"status": response.status, "headers": {}, "json": None, **measured}


def _is_text(response: HttpResponse) -> bool:
    kind = response.headers.get("content-type", "").lower()
    return bool(response.text) and (
        kind.startswith("text/") or any(subtype in kind for subtype in ("json", "xml", "urlenc"))
    )


def _error_text(error: Exception) -> str:
    """The error's message; many of httpx's errors have none."""
    text = str(error).strip().rstrip(".")
    return text or {"ReadError": "it was closed", "WriteError": "it was closed"}.get(
        type(error).__name__, type(error).__name__
    )
