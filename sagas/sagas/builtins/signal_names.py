"""The signals that the engine sends to its own workflows; no `wait` can receive one of these."""

from __future__ import annotations

CANCEL_SIGNAL = "saga-cancel"
"""From a parent to its nested saga: roll back."""
PARKED_SIGNAL = "saga-parked"
"""From a nested saga to its parent: the parked operations."""
RETRY_NOTIFICATION_SIGNAL = "saga-again"
"""To a notification: make the next attempt now."""
LOCKS_SIGNAL = "saga-locks"
"""To a saga that waits for locks: it may have been granted them, so it asks the lock database."""

_OF_THE_ENGINE = (CANCEL_SIGNAL, PARKED_SIGNAL, RETRY_NOTIFICATION_SIGNAL, LOCKS_SIGNAL)
_OF_TEMPORAL = "__temporal_"
"""The beginning of the names that Temporal keeps for itself."""


def is_reserved_signal(name: str) -> bool:
    """True for the name of a signal that the engine or Temporal handles itself."""
    return name in _OF_THE_ENGINE or name.startswith(_OF_TEMPORAL)
