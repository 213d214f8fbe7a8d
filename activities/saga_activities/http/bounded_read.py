"""Reads responses within limits. No server is trusted: not a participant, not a token endpoint.

The HTTP client would decode a body without a limit, layer by layer: a few hundred bytes become a gigabyte. So the
bytes are taken as they arrive, and decoded here. A single head is limited by h11 (100 KiB), time by the caller.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Mapping

import httpx

from saga_activities.http.bounded_stream import ResponseCost, UnreadableBodyError
from saga_activities.http.response import HttpResponse
from saga_activities.input_limits import MAX_RESPONSE_BYTES
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.protocol.size_limits import omitted
from sagas.text.exact_json import decode_unambiguous

ACCEPT_ENCODING = "gzip"
_IDENTITY = ("", "identity")
_GZIP = ("gzip", "x-gzip")
_MAX_GZIP_MEMBERS = 1_000
_MAX_BELIEVED_BYTES = 1 << 40
"""A body that is said to be larger could not arrive in time."""

# Python's other codecs may be quadratic (punycode), strict in spite of `errors` (idna), or not about text (zlib).
_CHARSETS = re.compile(
    r"us-ascii|iso-8859-\d{1,2}|latin-?1|windows-125\d|utf-?(8|16|16le|16be|32)|koi8-[ru]|gbk|gb18030|big5|euc-(jp|kr)"
    r"|shift_jis",
    re.ASCII | re.IGNORECASE,
)


async def send_bounded(client: httpx.AsyncClient, request: httpx.Request, mask: Callable[[str], str]) -> HttpResponse:
    """Send once and read the response, with ``mask`` applied to headers and text.

    Raises httpx.HTTPError and UnreadableBodyError.
    """
    cost = ResponseCost(request.extensions.get("trace"))
    request.extensions["trace"] = cost
    response = await client.send(request, stream=True)
    cost.begin_body()
    try:
        headers = _masked_headers(response, mask)
        body = await _read_body(response, headers, cost)
        if isinstance(body, int):
            return HttpResponse(response.status_code, headers, omitted=omitted(body))
        text, undecodable = _decoded(body, response.charset_encoding)
        if _has_too_many_values(text):
            return HttpResponse(response.status_code, headers, omitted=omitted(len(body), "values"))
        received = HttpResponse(response.status_code, headers, mask(text), undecodable=undecodable)
        return received.with_masked_spellings(mask)
    finally:
        await response.aclose()


def _masked_headers(response: httpx.Response, mask: Callable[[str], str]) -> dict[str, str]:
    """The headers, by names in lower case. The client joins the values of a name one by one, in quadratic time."""
    values: dict[str, list[str]] = {}
    for name, value in response.headers.multi_items():
        values.setdefault(name.lower(), []).append(value)
    return {name: mask(", ".join(each)) for name, each in values.items()}


def _has_too_many_values(text: str) -> bool:
    """Return whether it is JSON of more values than a result may have: two bytes become a list."""
    if sum(map(text.count, ",[{")) <= MAX_RESULT_VALUES:
        return False
    try:
        waiting = [decode_unambiguous(text)]
    except (ValueError, RecursionError):
        return False
    count = 0
    while waiting and count <= MAX_RESULT_VALUES:
        value = waiting.pop()
        if isinstance(value, dict | list):
            count += len(value)
            waiting += value.values() if isinstance(value, dict) else value
    return count > MAX_RESULT_VALUES


async def _read_body(response: httpx.Response, headers: Mapping[str, str], cost: ResponseCost) -> bytes | int:
    """The decoded body; its size, as far as it is known, if it is too large to keep."""
    coding = headers.get("content-encoding", "").strip().lower()
    gzip = _GzipDecoder() if coding in _GZIP else None
    body, received = bytearray(), 0
    async for part in response.aiter_raw():
        if gzip is None and coding not in _IDENTITY:
            raise UnreadableBodyError(f"it has the content-encoding {coding[:50]!r}; only a single gzip is accepted")
        received += len(part)
        await cost.add_part(len(part))
        body += part if gzip is None else gzip.decode(part, MAX_RESPONSE_BYTES + 1 - len(body))
        if max(len(body), received) > MAX_RESPONSE_BYTES:
            announced = headers.get("content-length", "") if gzip is None else ""
            size = int(announced) if announced.isdecimal() else 0
            return max(size if size <= _MAX_BELIEVED_BYTES else 0, len(body), received)
    if gzip is not None and received and not gzip.is_complete:
        raise UnreadableBodyError("its gzip data is incomplete")
    return bytes(body)


class _GzipDecoder:
    """Decodes gzip data (RFC 1952) in parts: one member after another, with zeros as padding behind them."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._members = 1

    @property
    def is_complete(self) -> bool:
        """True if the data so far ends with a whole member."""
        return self._member.eof

    def decode(self, part: bytes, limit: int) -> bytes:
        """The bytes decoded from a part of the data, at most ``limit``, from 1. Raises UnreadableBodyError."""
        decoded = bytearray()
        while part and len(decoded) < limit:
            if self._member.eof:
                part = part.lstrip(b"\0")
                if not part:
                    break
                self._begin_member()
            try:
                decoded += self._member.decompress(part, limit - len(decoded))
            except zlib.error:
                raise UnreadableBodyError("its gzip data is corrupt") from None
            part = self._member.unused_data
        return bytes(decoded)

    def _begin_member(self) -> None:
        # A member of 20 bytes may hold nothing, and each of them costs time and copies what follows.
        if self._members == _MAX_GZIP_MEMBERS:
            raise UnreadableBodyError(f"its gzip data has more than {_MAX_GZIP_MEMBERS:,} members")
        self._members += 1
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)


def _decoded(body: bytes, charset: str | None) -> tuple[str, str]:
    """The body as text, and why its bytes are none: empty if they are text."""
    declared = charset if charset is not None and _CHARSETS.fullmatch(charset) and _is_codec(charset) else None
    try:
        return body.decode(declared or "utf-8"), ""
    except UnicodeDecodeError as error:
        name = f"{declared}, which its content-type declares" if declared else "UTF-8"
        undecodable = f"its body is not text in {name} (byte 0x{body[error.start]:02x} at {error.start + 1})"
        return body.decode(declared or "utf-8", errors="replace"), undecodable


def _is_codec(charset: str) -> bool:
    try:
        return codecs.lookup(charset) is not None
    except LookupError:  # iso-8859-99
        return False
