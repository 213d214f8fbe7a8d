"""Builds the request from the arguments of ``uses: http``. Pure; all errors are found before anything is sent.

URLs are read by the parser of the client that connects: with two parsers a URL could name two hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote, urlencode

import httpx

from sagas.builtins.callbacks import CALLBACK
from sagas.builtins.http_headers import KeyFormat, reserved_headers
from sagas.builtins.registry import BUILTINS, READ_METHODS
from sagas.input_limits import MAX_JSON_DEPTH
from sagas.text.digests import name_uuid, sha256_hex
from sagas.text.exact_json import encode_json
from sagas.text.header_names import is_header_name
from sagas.text.json_values import json_problem
from sagas.text.message_texts import MessageTexts

METHODS = (*READ_METHODS, "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
FIELDS = frozenset(BUILTINS["http"].parameters["properties"]) - {CALLBACK}
DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_DEPTH = 10 * MAX_JSON_DEPTH
"""A definition may nest values of its own around an input."""


class InvalidRequestError(ValueError):
    """The arguments do not form a request; the message says which one and why."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, ready to be sent. ``target`` is its name in messages: the method and the path without the query.

    ``foreign``: the URL names another host than the connection, one of its allowed hosts.
    """

    method: str
    url: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    foreign: bool = False

    @property
    def is_read(self) -> bool:
        return self.method in READ_METHODS


def build_request(
    arguments: Mapping[str, Any],
    base: str | None,
    managed_headers: tuple[str, ...] = (),
    permits: Callable[[str], bool] = lambda _: False,
) -> HttpRequest:
    """Build the request; ``base`` is the connection's URL, ``managed_headers`` are those that the engine sets itself.

    ``permits`` says whether a URL may name another host than the connection's. Raises InvalidRequestError.
    """
    try:
        return _build(arguments, base, managed_headers, permits)
    except UnicodeEncodeError:
        raise InvalidRequestError("half a surrogate pair cannot be sent") from None


def _build(
    arguments: Mapping[str, Any], base: str | None, managed_headers: tuple[str, ...], permits: Callable[[str], bool]
) -> HttpRequest:
    unknown = sorted(set(arguments) - FIELDS)
    if unknown:
        raise InvalidRequestError(f"http has no field {unknown[0]!r}")
    method = str(arguments.get("method", "GET")).upper()
    if method not in METHODS:
        raise InvalidRequestError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    texts = MessageTexts()
    headers = _headers(arguments.get("headers"), managed_headers, texts)
    content, kind = _content(arguments, texts)
    if content is not None and method in READ_METHODS:
        raise InvalidRequestError(f"a {method} request has no body; name the method, such as `method: POST`")
    if kind is not None:
        headers.setdefault("content-type", kind)
    url = _with_query(_url(arguments, base, permits), arguments.get("query"), texts)
    path = _parsed(url).raw_path.partition(b"?")[0].decode("ascii")
    foreign = base is not None and not same_origin(url, base)
    return HttpRequest(method, url, f"{method} {path}", headers, content, foreign)


def _url(arguments: Mapping[str, Any], base: str | None, permits: Callable[[str], bool]) -> str:
    url, path = arguments.get("url"), arguments.get("path")
    if (url is None) == (path is None):
        raise InvalidRequestError("http needs `path` (below the connection's url) or `url`, and not both")
    if path is not None:
        if base is None:
            raise InvalidRequestError("`path` needs a connection; without one write the whole `url`")
        return base.rstrip("/") + "/" + _address_part(path, "path").lstrip("/")
    text = _address_part(url, "url")
    target = _parsed(text)
    if target.scheme not in DEFAULT_PORTS or not target.host:
        raise InvalidRequestError("`url` must be a complete http:// or https:// URL")
    if target.userinfo:
        raise InvalidRequestError("`url` contains a user or password; put them under `auth` of a connection")
    if base is not None and not same_origin(text, base) and not permits(target.host):
        raise InvalidRequestError("`url` names another host than its connection and none of its `allowed_hosts`")
    return text


def _parsed(url: str) -> httpx.URL:
    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidRequestError(f"the URL cannot be used: {error}") from None


def _address_part(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequestError(f"`{name}` must be a string, not {_describe_type(value)}")
    if any(ord(character) <= 32 or ord(character) == 127 for character in value) or "#" in value or "\\" in value:
        raise InvalidRequestError(
            f"`{name}` contains a space, a control character, # or \\, which a URL must not contain"
        )
    # An id with `..` in it must not turn `/orders/<id>` into another resource.
    if any(segment in (".", "..") for segment in unquote(value.split("?")[0]).split("/")):
        raise InvalidRequestError(f"`{name}` contains a `.` or `..` segment")
    return value


def same_origin(first: str, other: str) -> bool:
    """True when both addresses are the same scheme, host and port. Raises InvalidRequestError."""
    left, right = (
        (url.scheme, url.raw_host, url.port or DEFAULT_PORTS.get(url.scheme)) for url in map(_parsed, (first, other))
    )
    return left == right


def names_another_host(arguments: Mapping[str, Any], base: str) -> bool:
    """True if the `url` in the arguments is not one of the host of ``base``, the connection's URL."""
    url = arguments.get("url")
    try:
        return isinstance(url, str) and not same_origin(url, base)
    except InvalidRequestError:
        return True


def redirect_target(url: str, location: str) -> str | None:
    """The target of a redirect from ``url`` within the same origin; None if it leads elsewhere or nowhere."""
    try:
        target = httpx.URL(url).join(location)
        usable = bool(location) and not target.userinfo and same_origin(url, str(target))
    except (httpx.InvalidURL, ValueError):
        return None
    return str(target) if usable else None


def _with_query(url: str, query: Any, texts: MessageTexts) -> str:
    if query is None:
        return url
    if not isinstance(query, Mapping):
        raise InvalidRequestError(f"`query` must be a mapping, not {_describe_type(query)}")
    pairs = [
        (str(name), _scalar_string(item, f"query.{name}", texts))
        for name, value in query.items()
        if value is not None
        for item in (value if isinstance(value, list | tuple) else [value])
    ]
    if not pairs:
        return url
    return url + ("&" if "?" in url else "?") + urlencode(pairs)


def _headers(headers: Any, managed_headers: tuple[str, ...], texts: MessageTexts) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidRequestError(f"`headers` must be a mapping, not {_describe_type(headers)}")
    result: dict[str, str] = {}
    reserved = reserved_headers(managed_headers)
    for name, value in headers.items():
        lower = str(name).lower()
        if lower in reserved:
            raise InvalidRequestError(f"the header {name} is set by the engine or the connection")
        if not is_header_name(lower):
            raise InvalidRequestError(f"{name!r} is not a header name")
        if value is None:
            continue
        text = _scalar_string(value, f"headers.{name}", texts).strip(" ")
        if not text.isascii() or not text.isprintable():
            raise InvalidRequestError(f"the header {name} may contain printable ASCII only")
        result[lower] = text
    return result


def _content(arguments: Mapping[str, Any], texts: MessageTexts) -> tuple[bytes | None, str | None]:
    given = [name for name in ("json", "form", "body") if name in arguments]
    if len(given) > 1:
        raise InvalidRequestError(f"`{given[0]}` and `{given[1]}` are both a body; give only one")
    if not given:
        return None, None
    value = arguments[given[0]]
    if given[0] == "json":
        if problem := json_problem(value, max_depth=_MAX_DEPTH):
            raise InvalidRequestError(f"`json` cannot be written as JSON: {problem}")
        try:
            return encode_json(value), "application/json"
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"`json` cannot be written as JSON: {error}") from None
    if given[0] == "form":
        if not isinstance(value, Mapping):
            raise InvalidRequestError(f"`form` must be a mapping, not {_describe_type(value)}")
        pairs = [
            (str(name), _scalar_string(item, f"form.{name}", texts)) for name, item in value.items() if item is not None
        ]
        return urlencode(pairs).encode(), "application/x-www-form-urlencoded"
    if not isinstance(value, str):
        raise InvalidRequestError(f"`body` must be a string, not {_describe_type(value)}; use `json` for data")
    return value.encode(), "text/plain; charset=utf-8"


def _scalar_string(value: Any, name: str, texts: MessageTexts) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal):
        try:
            return texts.text(value)
        except ValueError as error:
            raise InvalidRequestError(f"`{name}` cannot be written: {error}") from None
    raise InvalidRequestError(f"`{name}` must be a string, a number or a boolean, not {_describe_type(value)}")


def _describe_type(value: Any) -> str:
    if value is None:
        return "null"
    return {dict: "a mapping", list: "a list", bool: "a boolean", int: "a number", Decimal: "a number"}.get(
        type(value), f"a {type(value).__name__}"
    )


def encode_key(key: str, format: KeyFormat = "key") -> str:
    """The key as a header value. As it is, all but printable ASCII, and ``%``, is percent-encoded, so the encoding is
    unique.
    """
    if format != "key":
        return name_uuid(key) if format == "uuid" else sha256_hex(key)
    return quote(key, safe="!#$&'()*+,/:;=?@[]-._~|^`{}<>")
