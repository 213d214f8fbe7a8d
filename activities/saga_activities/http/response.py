"""Reads a response: status classes, Retry-After, and the result, an expression over ``response``. Pure.

The outcome of the attempt is decided in ``attempt``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any

from saga_activities.http.request import InvalidRequestError
from sagas.builtins.http_statuses import status_range, written_statuses
from sagas.expressions import ExpressionError, compile_expression
from sagas.expressions.values import OmittedValue, UnusableValue
from sagas.input_limits import MAX_RETRY_DELAY
from sagas.protocol.size_limits import measure
from sagas.text.exact_json import RepeatedName, encode_json, readable_json
from sagas.text.json_values import map_texts, parse_json

MAX_EXCERPT = 500
_PASSING = (401, 407, 408, 409, 421, 423, 425, 429)
"""Statuses of 4xx that another attempt may not get: credentials, a conflict, a lock, a limit of calls."""
_OTHER_ARGUMENTS = 400
"""The answer to a key that was used with other arguments: it says nothing about those."""
_BYTE_ORDER_MARK = "\ufeff"
_AS_TEXT = "correct the service, or take the body as text with `result: response.text`"
_UNRECORDED_HEADERS = ("set-cookie", "authorization", "proxy-authorization", "www-authenticate")


class ResultError(ValueError):
    """``result`` or ``rejected_when`` does not compile, or cannot be computed from this response."""


@dataclass(frozen=True)
class HttpResponse:
    """One response. ``omitted`` stands in place of a body that was too large to keep, or that has too many values for
    a result; ``text`` is empty then.

    ``undecodable`` says why the bytes of the body are not text in its charset; ``text``, with U+FFFD in place of such
    bytes, is for messages only then.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    omitted: Mapping[str, Any] | None = None
    undecodable: str = ""

    @property
    def status_line(self) -> str:
        """The status with its reason phrase: ``503 Service Unavailable``."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)

    def json(self) -> Any:
        """The parsed body; None if it is not JSON, or not certain."""
        try:
            return self._parsed()
        except ValueError:
            return None

    def body(self) -> Any:
        """The body as JSON, else its text, else None. Raises ResultError if it is not certain which value it has."""
        try:
            return self._parsed()
        except ResultError:
            raise
        except ValueError:
            return self.text

    def _parsed(self) -> Any:
        """The body as JSON; None if it is empty. Raises ResultError as :meth:`body`, ValueError if it is not JSON."""
        if self.undecodable:
            raise ResultError(
                f"{self.undecodable}; correct the service or the charset in its content-type, or write a `result` that"
                " does not read the body"
            )
        if not self.text.strip():
            return None
        value, error = self._document
        if isinstance(error, RepeatedName):
            raise ResultError(
                f"its body has the name {error.name!r} twice in one object, and which value counts is not known;"
                f" {_AS_TEXT}"
            )
        if error is not None:
            raise error
        if self.text.startswith(_BYTE_ORDER_MARK):
            raise ResultError(f"its body begins with a byte order mark, which JSON does not allow; {_AS_TEXT}")
        return value

    @cached_property
    def _document(self) -> tuple[Any, ValueError | None]:
        """The JSON value of the text, or the error of reading it: the body of a hostile service takes a second."""
        try:
            return parse_json(self.text.removeprefix(_BYTE_ORDER_MARK)), None
        except ValueError as error:
            return None, error

    def with_masked_spellings(self, mask: Callable[[str], str]) -> HttpResponse:
        """The response without secrets that JSON spells in another way, as in ``\\u0073ecret``."""
        if "\\" not in self.text:
            return self
        value, error = self._document
        if error is not None:
            text = _with_masked_escapes(self.text, mask)
            return self if text == self.text else replace(self, text=text)
        masked = map_texts(value, mask)
        if masked == value:
            return self
        mark = _BYTE_ORDER_MARK if self.text.startswith(_BYTE_ORDER_MARK) else ""
        return replace(self, text=mark + encode_json(masked).decode())

    @property
    def problem(self) -> ValueError | None:
        """Why the body is not used as JSON; None if it is."""
        try:
            self._parsed()
        except ValueError as error:
            return error
        return None

    def to_json(self) -> dict[str, Any]:
        """The value of ``response`` in expressions, and the result of a probe.

        It has no ``json`` if it is not certain which value the body has, and no ``text`` if its bytes are not text.
        """
        seen: dict[str, Any] = {
            "status": self.status,
            "headers": {name: value for name, value in self.headers.items() if name not in _UNRECORDED_HEADERS},
        }
        if self.omitted is not None:
            return {**seen, "json": None, "text": None, **self.omitted}
        try:
            seen["json"] = self._parsed()
        except ResultError:
            pass
        except ValueError:
            seen["json"] = None
        return seen if self.undecodable else {**seen, "text": self.text}

    def unusable_parts(self) -> dict[str, UnusableValue]:
        """The parts that :meth:`to_json` leaves out, or that it cannot give."""
        if self.omitted is not None:
            why = f"the body of the response has {measure(self.omitted)} and was not kept"
            return dict.fromkeys(("json", "text"), OmittedValue(why))
        try:
            self._parsed()
        except ResultError as error:
            names = ("json", "text") if self.undecodable else ("json",)
            return dict.fromkeys(names, UnusableValue(str(error)))
        except ValueError:
            pass
        return {}


_UNQUOTED = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""The characters up to the next quote that has no backslash before it."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _with_masked_escapes(text: str, mask: Callable[[str], str]) -> str:
    """A text that is not usable JSON, without the secrets that it spells with JSON's escapes."""

    def masked_run(run: re.Match[str]) -> str:
        if "\\" not in run[0]:
            return run[0]
        halves = _ESCAPE.sub(_escaped_character, run[0])
        spelled = halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        shown = mask(spelled)
        return run[0] if shown == spelled else readable_json(shown)[1:-1]

    return _UNQUOTED.sub(masked_run, text)


def _escaped_character(escape: re.Match[str]) -> str:
    code, short = escape.groups()
    return chr(int(code, 16)) if code else _SHORT_ESCAPES.get(short, short)


def definite_statuses(status: int, arguments: Mapping[str, Any]) -> str:
    """The list for ``rejected`` that includes this status; empty for one that usually passes or concerns the
    caller."""
    if not 400 <= status <= 499 or status in (*_PASSING, _OTHER_ARGUMENTS):
        return ""
    return ", ".join(sorted({str(pattern) for pattern in (*written_statuses(arguments, "rejected"), status)}))


def check_patterns(arguments: Mapping[str, Any]) -> None:
    """Raises InvalidRequestError if ``done`` or ``rejected`` holds something that is not a status."""
    for name in ("done", "rejected"):
        for pattern in written_statuses(arguments, name):
            if status_range(pattern) is None:
                raise InvalidRequestError(f"`{name}` contains {pattern!r}; write a status (201) or a class (2xx)")


def retry_after(response: HttpResponse, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Seconds to wait as the participant asks, at most ``MAX_RETRY_DELAY``; None if it does not ask.

    Source: RFC 9110 section 10.2.3, a number of seconds or a date, in ASCII.
    """
    value = response.headers.get("retry-after", "").strip()
    if not value.isascii():  # the parser of dates reads the digits of all scripts
        return None
    if value.isdecimal():
        seconds = float(value)
    else:
        try:
            timestamp = parsedate_to_datetime(value)
        except (ValueError, OverflowError):  # a year, a day or a zone of twenty digits
            return None
        if timestamp.tzinfo is None:
            timestamp = timestamp.replace(tzinfo=UTC)
        seconds = (timestamp - now()).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_DELAY)


# `result` and `rejected_when` of an HTTP step: CEL expressions over `response`, compiled before the request is sent.
ResultFunction = Callable[[HttpResponse], Any]


def compile_result(source: Any) -> ResultFunction:
    """Compile ``result`` into a function from the response to the step's result.

    Without it the result is the body as JSON, else its text, else null. Both this function and the one it returns
    raise ResultError.
    """
    return HttpResponse.body if source is None else _compile("result", source)


def compile_rejection(source: Any) -> Callable[[HttpResponse], bool]:
    """Compile ``rejected_when`` into a condition. This function and the condition raise ResultError."""
    return compile_condition("rejected_when", "false" if source is None else source)


def compile_condition(name: str, source: Any) -> Callable[[HttpResponse], bool]:
    """Compile the argument ``name`` into a condition. This function and the condition raise ResultError."""
    evaluate = _compile(name, source)

    def is_true(response: HttpResponse) -> bool:
        value = evaluate(response)
        if not isinstance(value, bool):
            raise ResultError(f"`{name}` is neither true nor false")
        return value

    return is_true


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
            return expression.evaluate({"response": {**response.unusable_parts(), **response.to_json()}})
        except ExpressionError as error:
            raise ResultError(f"{error.message}{_without_json(response)}") from None

    return to_result


def _without_json(response: HttpResponse) -> str:
    """Why ``response.json`` is null or missing, for the end of a message; empty if the body is JSON."""
    if not response.text.strip():
        return "; the answer has no body"
    problem = response.problem
    if problem is None or isinstance(problem, ResultError):
        return ""  # an expression that reads it says so
    return f"; the body is not usable JSON: {problem}"
