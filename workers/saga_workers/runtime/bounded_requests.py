"""Reads the requests of a connection, and refuses those whose framing is ambiguous or costs too much to read."""

from __future__ import annotations

from typing import TypeAlias

import h11

from saga_workers.input_limits import CHUNK_BYTES, MAX_HEAD_BYTES, MAX_SMALL_CHUNKS

ReadEvent: TypeAlias = "h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]"

AMBIGUOUS_LENGTH = "a request has either Content-Length or Transfer-Encoding"

SMALL_CHUNKS = f"the body has too many small chunks; send chunks of {CHUNK_BYTES} bytes or more"


class RequestReader(h11.Connection):
    """The server's side of a connection. ``problem``: why the last request is refused; None if it only is malformed.

    A chunk costs as much to read as hundreds of bytes. So there may be only a few more chunks than the bytes of the
    body justify.
    """

    problem: str | None = None
    _chunks = 0
    _bytes = 0

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)

    def next_event(self) -> ReadEvent:
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._count(event)
        elif isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            names = {name for name, _ in event.headers}
            if names.issuperset((b"content-length", b"transfer-encoding")):
                # A proxy that goes by the length would take the rest for the next request (RFC 9112, 6.1).
                self._refuse(AMBIGUOUS_LENGTH)
        return event

    def _count(self, data: h11.Data) -> None:
        self._chunks += data.chunk_start
        self._bytes += len(data.data)
        if self._chunks > MAX_SMALL_CHUNKS + self._bytes // CHUNK_BYTES:
            self._refuse(SMALL_CHUNKS)

    def _refuse(self, problem: str) -> None:
        self.problem = problem
        raise h11.RemoteProtocolError(problem)
