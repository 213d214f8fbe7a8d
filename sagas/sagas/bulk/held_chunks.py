"""Chunks that a standing pause holds back: their calls wait here, and one of them asks for the end of the pause.

So a pause takes one activity per interval, however many sagas wait, and a cancel or a deadline ends a call that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.bulk.member import Member, PendingCall
from sagas.machine.standing_pauses import pause_view
from sagas.protocol.held_outcomes import pause_behind
from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Outcome, is_held_back
from sagas.protocol.saga_view import PauseView
from sagas.protocol.standing_pause import StandingPause

ChunkKey = tuple[Any, ...]
Waiting = Sequence[tuple[Member, PendingCall]]


@dataclass(slots=True)
class _Hold:
    """``due_at``: when the next call asks for the end of the pause; None while one does."""

    pause: StandingPause
    due_at: float | None


def chunk_key(call: Call) -> ChunkKey:
    """Return what calls of one chunk have in common."""
    guard = call.guard
    assert guard is not None
    return (call.step, call.op, call.action, guard.connection, guard.mode, guard.holds, call.reads, call.timeout)


class HeldChunks:
    """The pauses that hold back chunks of one bulk workflow, by what the calls of a chunk have in common."""

    def __init__(self) -> None:
        self._holds: dict[ChunkKey, _Hold] = {}

    def chunk_ended(self, call: Call, outcomes: Sequence[Outcome | None], at: float) -> bool:
        """Learn from a chunk, of which ``call`` is one; returns whether it was held back."""
        key = chunk_key(call)
        self._holds.pop(key, None)
        for outcome in outcomes:
            if outcome is None or (pause := pause_behind(outcome)) is None:
                continue
            is_held = is_held_back(outcome)
            # A call that has failed waits by itself: the next one asks in its place.
            self._holds[key] = _Hold(pause, at + (outcome.retry_after or 1.0) if is_held else at)
            return is_held
        return False

    def admit(self, key: ChunkKey, waiting: Waiting, at: float) -> tuple[Waiting, Waiting]:
        """The calls that are performed now, and those that wait."""
        hold = self._holds.get(key)
        if hold is None:
            return waiting, ()
        if hold.due_at is None or hold.due_at > at or not waiting:
            return (), waiting
        hold.due_at = None
        return waiting[:1], waiting[1:]

    def due_times(self, ready: Mapping[ChunkKey, Waiting]) -> Iterator[float]:
        """When calls that wait ask again."""
        for key, hold in self._holds.items():
            if hold.due_at is not None and ready.get(key):
                yield hold.due_at

    def pause_of(self, member: Member) -> PauseView | None:
        """The pause for which a saga waits; None if it waits for none."""
        held = {id: hold for id, pending in member.calls.items() if (hold := self._holds.get(chunk_key(pending.call)))}
        if not held:
            return None
        entries = [member.calls[id].call.entry for id in held]
        return pause_view(next(iter(held.values())).pause, entries)

    def counts(self, members: Iterable[Member]) -> dict[str, int]:
        """How many of these sagas wait for each pause, by its order."""
        counts: dict[str, int] = {}
        for pause in map(self.pause_of, members) if self._holds else ():
            if pause is not None:
                counts[pause.order] = counts.get(pause.order, 0) + 1
        return counts
