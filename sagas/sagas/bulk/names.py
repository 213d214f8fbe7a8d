"""The names of the activities and updates of bulk execution, and its limits."""

from __future__ import annotations

CLAIM_ACTIVITY = "saga.claim"
CHUNK_ACTIVITY = "saga.chunk"
DETACH_ACTIVITY = "saga.detach"
RECORD_ACTIVITY = "saga.record"
DELAY_ACTIVITY = "saga.delay"
TAKE_ACTIVITY = "saga.take"
"""The activity of a saga that has left its bulk workflow: it asks whether its run is the one that goes on with it."""
BULK_ACTIVITIES = (CLAIM_ACTIVITY, CHUNK_ACTIVITY, DETACH_ACTIVITY, RECORD_ACTIVITY, DELAY_ACTIVITY, TAKE_ACTIVITY)

DETACH_UPDATE = "detach"
CANCEL_UPDATE = "cancel"
CLAIMED_UPDATE = "claimed"
HELD_QUERY = "held"

LONGEST_DELAY = 1.0
"""Seconds. A shorter wait is one of an activity: a timer of Temporal takes about a second, however short it is."""

MAX_MEMBERS = 2_000
"""Sagas of one bulk workflow: a workflow task with more would come near Temporal's limit of two seconds."""
