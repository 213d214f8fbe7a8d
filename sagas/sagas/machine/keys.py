"""Names: ledger ids, idempotency keys, and the ids of what is in flight."""

from __future__ import annotations

from typing import Literal

Suffix = Literal["", "undo", "confirm"]

NOTIFICATION = "notify-"
"""Begins the names of notifications, and with them their keys and guard rows; no step can have such an id."""


def entry_id(step: str, index: int | None) -> str:
    """The ledger id: the step's id, with the item's number for a for_each."""
    return step if index is None else f"{step}#{index}"


def step_key(saga_id: str, entry: str, generation: int, suffix: Suffix = "", alternate: int = 0) -> str:
    """The idempotency key a participant sees. It names the intention: never a run, never an attempt."""
    key = f"{saga_id}/{entry}"
    if generation > 1:
        key += f"@{generation}"
    if suffix:
        key += f"/{suffix}"
    if alternate:
        key += f".{alternate}"
    return key


def notification_run(saga_id: str, notification: str, generation: int) -> str:
    """The id of the run that delivers a notification; another generation of the saga tells its own."""
    run = f"{saga_id}~{notification}"
    return f"{run}@{generation}" if generation > 1 else run
