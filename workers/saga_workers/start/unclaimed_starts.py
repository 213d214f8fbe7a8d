"""The starts of this process that no worker has claimed in time: each may still be claimed, or be refused."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from saga_workers.start.gathered_starts import WaitingStart
from saga_workers.start.start_requests import StartResult
from sagas.protocol.payloads import input_digest

_MAX_UNCLAIMED = 10_000
_UNCLAIMED_FOR = 60.0
"""How many starts are kept in memory, and for how many seconds."""


@dataclass(frozen=True, slots=True)
class UnclaimedStart:
    bulk_id: str
    input_digest: str
    noted_at: float


class UnclaimedStarts:
    """By the ids of the sagas."""

    def __init__(self) -> None:
        self._starts: OrderedDict[str, UnclaimedStart] = OrderedDict()

    def note(self, starts: Sequence[WaitingStart], bulk_id: str) -> None:
        for start in starts:
            self._starts[start.id] = UnclaimedStart(bulk_id, input_digest(start.request.input), time.monotonic())
        while len(self._starts) > _MAX_UNCLAIMED:
            self._starts.popitem(last=False)

    def find(self, saga_id: str) -> UnclaimedStart | None:
        noted = self._starts.get(saga_id)
        return None if noted is None or noted.noted_at < time.monotonic() - _UNCLAIMED_FOR else noted

    def forget(self, saga_id: str) -> None:
        self._starts.pop(saga_id, None)

    def confirmed(self, result: StartResult) -> StartResult:
        """The result, which counts as started now if this process has started the saga but could not confirm it."""
        noted = self._starts.pop(result.id, None)
        is_late = noted is not None and result.bulk_id in (None, noted.bulk_id)
        return replace(result, started=True) if is_late else result
