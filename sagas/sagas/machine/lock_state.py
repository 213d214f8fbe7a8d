"""The state of a run's request for its locks, as a record without decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.protocol.saga_view import LockRequestState


@dataclass(slots=True)
class LockState:
    """The request for the locks of a run. Times are seconds since the epoch.

    ``in_flight``: an ``AcquireLocks`` has no answer yet. ``changed``: locks were released since it was sent, so it is
    sent again. ``questions`` is how often the request was repeated without a signal. ``undo``: the request of an undo,
    which waits without limit. ``release_again``: it is not known whether the release was carried out.
    ``paused_seconds`` of the wait do not count: the saga was paused.
    """

    keys: tuple[str, ...]
    holder: str
    requested_at: float
    state: LockRequestState = "WAITING"
    in_flight: bool = True
    changed: bool = False
    questions: int = 0
    undo: bool = False
    release_again: bool = False
    paused_seconds: float = 0.0
    held_at: float | None = None
    blockers: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = tuple(self.keys)  # a list in a snapshot
