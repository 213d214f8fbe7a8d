"""Owners and holders of semantic locks: what the machine, the lock tables and the commands agree on."""

from __future__ import annotations

from sagas.protocol.payloads import UNDO_SUFFIX

MAX_HOLDER = 700
"""Characters of a holder: a primary key of MySQL has 3,072 bytes, and a character up to four."""


def owner_id(saga_id: str) -> str:
    """The owner of the locks of this saga: the id of its root saga."""
    return saga_id.removesuffix(UNDO_SUFFIX).partition("/")[0]


def holder_id(saga_id: str, generation: int, *, undo: bool = False) -> str:
    """The name under which a run requests and releases: no two runs share it. Raises ValueError if it is too long."""
    holder = f"{saga_id}~{generation}" if generation > 1 else saga_id
    if undo:
        holder += UNDO_SUFFIX
    if len(holder) > MAX_HOLDER:
        raise ValueError(f"the id of a nested saga with `locks` has at most {MAX_HOLDER} characters, not {len(holder)}")
    return holder
