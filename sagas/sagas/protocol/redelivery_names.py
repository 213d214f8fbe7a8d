"""The names of what starts a saga again after a compensation, for the event that had started it."""

from __future__ import annotations

REDELIVERY_HEADER = "saga-redelivery"
"""Header of a run whose event starts it again if it is compensated: the ``intervals`` in seconds, and how many of them
have ``passed``."""
REDELIVERY_WORKFLOW = "saga.redelivery"
"""The workflow type that waits and then starts the next generation; not a valid saga name."""
REDELIVERY_MEMO = "redelivery"
"""Memo field of such a run: ``ended`` says why it starts nothing any more."""
REDELIVER_ACTIVITY = "saga.redeliver"
"""The activity of a redelivery: it starts the next generation of the saga, if nobody else has."""
REDELIVERY_PREFIX = "redelivery@"
"""The part of the workflow id between the id of the saga and its generation."""


def redelivery_workflow_id(saga_id: str, generation: int) -> str:
    """The workflow id of the run that starts a saga again after the compensation of this generation."""
    return f"{saga_id}~{REDELIVERY_PREFIX}{generation}"
