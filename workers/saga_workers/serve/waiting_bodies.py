"""The bodies of requests that are not sent to Temporal yet: how many bytes of them a process holds."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from saga_workers.input_limits import MAX_WAITING_BODIES, MAX_WAITING_BODIES_OF_TOKEN
from saga_workers.serve.request_body import BadRequest


class WaitingBodies:
    """Counts the bytes of bodies by the names of the tokens that they were sent with."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, token: str, size: int) -> Iterator[None]:
        """Hold the body of a request, of at most ``size`` bytes, inside of this context. Raises BadRequest if it finds
        no room beside other ones; alone every body does.
        """
        of_token = self._bytes[token]
        full = of_token > 0 and of_token + size > MAX_WAITING_BODIES_OF_TOKEN
        if full or (self._bytes.total() > 0 and self._bytes.total() + size > MAX_WAITING_BODIES):
            whose = "with this token" if full else "to this server"
            raise BadRequest(503, f"too many requests that were sent {whose} wait; try again")
        self._bytes[token] += size
        try:
            yield
        finally:
            self._bytes[token] -= size
            if self._bytes[token] <= 0:
                del self._bytes[token]
