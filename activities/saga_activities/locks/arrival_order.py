"""Grants requests for locks: all keys or none, and nobody overtakes on a key. Pure.

A request is blocked by a key that another owner holds, and by an earlier request of another owner that waits for one of
its keys. The second rule does not hold for an owner that already holds a lock (its nested saga or its undo requests
more): the earlier request might wait for that very lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class LockRequest:
    """One request. ``since``: when it began to wait, in seconds since the epoch."""

    position: int
    owner: str
    keys: frozenset[str]
    since: float


class HeldLock(NamedTuple):
    """One lock: its owner, and since when (seconds since the epoch)."""

    owner: str
    since: float


class Blocker(NamedTuple):
    """The cause for which a request waits: who holds the key or waits for it before, and since when."""

    key: str
    owner: str
    since: float


def blockers_of(
    request: LockRequest, held: Mapping[str, HeldLock], waiting: Iterable[LockRequest], *, owner_holds: bool
) -> list[Blocker]:
    """Return what blocks the request, by key; empty: it is granted.

    ``held`` has the locks among its keys. ``waiting`` has at least the earlier requests that share a key with it.
    ``owner_holds``: its owner holds a lock, whatever its key.
    """
    earlier: dict[str, LockRequest] = {}
    if not owner_holds:
        for other in waiting:
            if other.position < request.position and other.owner != request.owner:
                for key in other.keys & request.keys:
                    if key not in earlier or other.position < earlier[key].position:
                        earlier[key] = other
    blockers = []
    for key in sorted(request.keys):
        if key in held:
            if held[key].owner != request.owner:
                blockers.append(Blocker(key, *held[key]))
        elif key in earlier:
            blockers.append(Blocker(key, earlier[key].owner, earlier[key].since))
    return blockers


def grant_waiting(
    candidates: Iterable[LockRequest],
    held: Mapping[str, HeldLock],
    waiting: Iterable[LockRequest],
    holding: Iterable[str],
) -> list[LockRequest]:
    """The candidates that can be granted now, in their order of arrival.

    ``waiting`` has all requests that share a key with a candidate, the candidates included. ``holding``: the owners
    among them that hold a lock.
    """
    locks, owners = dict(held), set(holding)
    queue = sorted(waiting, key=lambda request: request.position)
    granted: list[LockRequest] = []
    for request in sorted(candidates, key=lambda candidate: candidate.position):
        if not blockers_of(request, locks, queue, owner_holds=request.owner in owners):
            granted.append(request)
            queue.remove(request)
            owners.add(request.owner)
            locks.update({key: HeldLock(request.owner, request.since) for key in request.keys if key not in locks})
    return granted
