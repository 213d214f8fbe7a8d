"""Bounds what reading one response may cost, whatever its bytes are: a chunk of one byte costs as much as hundreds.

The HTTP client limits a single head, but not interim responses (1xx), chunk extensions or the number of chunks, and
parses all that has arrived without a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import httpcore

from saga_activities.input_limits import (
    MAX_RESPONSE_FRAMING,
    MAX_RESPONSE_HEADS,
    MAX_SMALL_PARTS,
    RESPONSE_PART_BYTES,
)

Trace: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]

_HEAD_READ = 4 * 1024
"""Bytes of a head that are parsed without a pause."""

_PARTS_AT_ONCE = 256
"""Parts of a body that are parsed without a pause. They take two milliseconds."""

_OPENED = (".connect_tcp.complete", ".start_tls.complete")


class UnreadableBodyError(Exception):
    """A response arrived, but its body cannot be decoded, or costs too much to read; the message says why."""


class ResponseCost:
    """Counts what it costs to read the response of one request, whose trace (a term of httpcore) it is.

    ``trace`` receives the same events. Reading a head that costs too much raises httpcore.RemoteProtocolError; such a
    body, UnreadableBodyError.
    """

    def __init__(self, trace: Trace | None) -> None:
        self._trace = trace
        self._in_body = False
        self._head = self._wire = self._payload = self._reads = self._parts = 0

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(_OPENED):
            self._count_reads(info["return_value"])
        if self._trace is not None:
            await self._trace(event, info)

    def begin_body(self) -> None:
        """The head has arrived: from now on it is the body that is read."""
        self._in_body = True

    async def add_part(self, size: int) -> None:
        """Count a part of the body, of at least one byte."""
        self._payload += size
        self._parts += 1
        self._check()
        if self._parts % _PARTS_AT_ONCE == 0:
            await asyncio.sleep(0)

    def _count_reads(self, stream: httpcore.AsyncNetworkStream) -> None:
        read = stream.read

        async def counted(max_bytes: int, timeout: float | None = None) -> bytes:
            # Data that TLS has decrypted is returned without a pause.
            await asyncio.sleep(0)
            data = await read(max_bytes if self._in_body else _HEAD_READ, timeout)
            self._reads += 1
            if self._in_body:
                self._wire += len(data)
            else:
                self._head += len(data)
            self._check()
            return data

        stream.read = counted

    def _check(self) -> None:
        if self._head > MAX_RESPONSE_HEADS or (not self._in_body and self._reads > MAX_SMALL_PARTS):
            raise httpcore.RemoteProtocolError("its head, with the interim responses before it, is too large")
        if max(self._reads, self._parts) > MAX_SMALL_PARTS + self._payload // RESPONSE_PART_BYTES:
            raise UnreadableBodyError(
                f"it arrives in too many small parts; send chunks of {RESPONSE_PART_BYTES} bytes or more"
            )
        if self._wire > MAX_RESPONSE_FRAMING + 2 * self._payload:
            raise UnreadableBodyError("most of its bytes are chunk headers or trailers")
