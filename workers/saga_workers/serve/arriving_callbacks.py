"""The callbacks that a process receives at the same time: the slow ones of some participants keep no others out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import Request

from saga_workers.input_limits import MAX_CALLBACKS_AT_ONCE, MAX_CALLBACKS_OF_ADDRESS
from saga_workers.serve.request_body import BadRequest, read_body
from sagas.builtins.callbacks import MAX_CALLBACK_BYTES


@dataclass(slots=True, eq=False)
class _Arriving:
    """A callback. ``reading``: the timeout that can end the reading of its body; ``is_read``: it has arrived."""

    address: str
    reading: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    is_read: bool = False


class ArrivingCallbacks:
    """The callbacks that are being received, in the order in which that began.

    Anybody who has an address can send many callbacks slowly. So a further one takes the place of the one whose body
    has been arriving for longest: of those to its address if these are too many, else of all.
    """

    def __init__(self) -> None:
        self._callbacks: list[_Arriving] = []

    @contextlib.asynccontextmanager
    async def receive(self, address: str, request: Request) -> AsyncIterator[bytes]:
        """The body of a callback to this address, which has a place inside of this context.

        Raises BadRequest as :func:`read_body`, and if there is no place, or another callback takes it.
        """
        self._make_room([callback for callback in self._callbacks if callback.address == address])
        callback = _Arriving(address)
        self._callbacks.append(callback)
        try:
            body = await _read(callback, request)
            yield body
        finally:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def _make_room(self, same_address: list[_Arriving]) -> None:
        full = len(same_address) >= MAX_CALLBACKS_OF_ADDRESS
        if not full and len(self._callbacks) < MAX_CALLBACKS_AT_ONCE:
            return
        slow = next((each for each in (same_address if full else self._callbacks) if not each.is_read), None)
        if slow is None:
            whose = "to this address" if full else "to this server"
            raise BadRequest(503, f"too many callbacks {whose} wait; send it again")
        self._callbacks.remove(slow)
        slow.reading.reschedule(asyncio.get_running_loop().time())


async def _read(callback: _Arriving, request: Request) -> bytes:
    try:
        async with callback.reading:
            body = await read_body(request, MAX_CALLBACK_BYTES)
    except TimeoutError:
        raise BadRequest(503, "the callback came too slowly while others waited; send it again") from None
    callback.is_read = True
    return body
