"""Reads a response: status classes, Retry-After, and the result, an expression over ``response``. Pure.

The outcome of the attempt is decided in ``attempt``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from saga_activities.http.request import InvalidRequestError
from sagas.builtins.http_statuses import status_range, written_statuses
from sagas.expressions import ExpressionError, compile_expression
from sagas.protocol.size_limits import omitted
from sagas.text.exact_json import RepeatedName
from sagas.text.json_values import parse_json

MAX_BODY_BYTES = 2 * 1024 * 1024
"""Bytes. A larger body is not kept."""


MAX_RETRY_AFTER = 3600.0
"""Seconds. Longer delays that a participant asks for are cut to this."""

MAX_EXCERPT = 500
_PASSING = (401, 407, 408, 409, 421, 423, 425, 429)
"""Statuses of 4xx that another attempt may not get: credentials, a conflict, a lock, a limit of calls."""
_UNRECORDED_HEADERS = ("set-cookie", "authorization", "proxy-authorization", "www-authenticate")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One response. ``omitted`` is the size in bytes of a body that was too large to keep; ``text`` is empty then."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    omitted: int | None = None

    @property
    def status_line(self) -> str:
        """The status with its reason phrase: ``503 Service Unavailable``."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)

    def json(self) -> Any:
        """The parsed body; None if it is not JSON."""
        try:
            return parse_json(self.text) if self.text else None
        except ValueError:
            return None

    def to_json(self) -> dict[str, Any]:
        """The value of ``response`` in expressions, and the result of a probe."""
        seen: dict[str, Any] = {
            "status": self.status,
            "headers": {name: value for name, value in self.headers.items() if name not in _UNRECORDED_HEADERS},
            "json": self.json(),
            "text": self.text,
        }
        if self.omitted is not None:
            seen |= {"text": None, **omitted(self.omitted)}
        return seen


def definite_statuses(status: int, arguments: Mapping[str, Any]) -> str:
    """The list for ``rejected`` that includes this status; empty for one that usually passes or concerns the caller."""
    if not 400 <= status <= 499 or status in _PASSING:
        return ""
    return ", ".join(sorted({str(pattern) for pattern in (*written_statuses(arguments, "rejected"), status)}))


def check_patterns(arguments: Mapping[str, Any]) -> None:
    """Raises InvalidRequestError if ``done`` or ``rejected`` holds something that is not a status."""
    for name in ("done", "rejected"):
        for pattern in written_statuses(arguments, name):
            if status_range(pattern) is None:
                raise InvalidRequestError(f"`{name}` contains {pattern!r}; write a status (201) or a class (2xx)")


def retry_after(response: HttpResponse, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Seconds to wait as the participant asks, at most ``MAX_RETRY_AFTER``; None if it does not ask.

    Source: RFC 9110 section 10.2.3, a number of seconds or a date.
    """
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        seconds = float(value)
    else:
        try:
            timestamp = parsedate_to_datetime(value)
        except (ValueError, OverflowError):  # a year, a day or a zone of twenty digits
            return None
        if timestamp.tzinfo is None:
            timestamp = timestamp.replace(tzinfo=UTC)
        seconds = (timestamp - now()).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


# `result` and `rejected_when` of an HTTP step: CEL expressions over `response`, compiled before the request is sent.
ResultFunction = Callable[[HttpResponse], Any]


class ResultError(ValueError):
    """``result`` or ``rejected_when`` does not compile, or cannot be computed from this response."""


def compile_result(source: Any) -> ResultFunction:
    """Compile ``result`` into a function from the response to the step's result.

    Without it the result is the body as JSON, else its text, else null. Both this function and the one it returns
    raise ResultError.
    """
    return _body_result if source is None else _compile("result", source)


def compile_refusal(source: Any) -> Callable[[HttpResponse], bool]:
    """Compile ``rejected_when`` into a condition, which raises ResultError as this function does."""
    if source is None:
        return lambda response: False
    refuses = _compile("rejected_when", source)

    def is_refused(response: HttpResponse) -> bool:
        refused = refuses(response)
        if not isinstance(refused, bool):
            raise ResultError("`rejected_when` is neither true nor false")
        return refused

    return is_refused


def _compile(name: str, source: Any) -> ResultFunction:
    """``source`` is one expression, bare or in ``${{ }}``."""
    if not isinstance(source, str):
        raise ResultError(f"`{name}` must be an expression")
    try:
        expression = compile_expression(source)
    except ExpressionError as error:
        raise ResultError(f"`{name}` does not compile: {error.message}") from None

    def to_result(response: HttpResponse) -> Any:
        try:
            return expression.evaluate({"response": response.to_json()})
        except ExpressionError as error:
            raise ResultError(f"{error.message}{_without_json(response)}") from None

    return to_result


def _body_result(response: HttpResponse) -> Any:
    """The body `null` and an empty body give null; any other body that is not JSON is the result as text."""
    if not response.text.strip():
        return None
    try:
        return parse_json(response.text)
    except RepeatedName as error:
        raise ResultError(
            f"its body has the name {error.name!r} twice in one object, and which value counts is not known; correct "
            "the service, or take the body as text with `result: response.text`"
        ) from None
    except ValueError:
        return response.text


def _without_json(response: HttpResponse) -> str:
    """Why ``response.json`` is null, for the end of a message; empty if the body is JSON."""
    if not response.text.strip():
        return "; the answer has no body"
    try:
        parse_json(response.text)
    except ValueError as error:
        return f"; the body is not usable JSON: {error}"
    return ""
