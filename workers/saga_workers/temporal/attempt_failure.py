"""The failure of the latest attempt of an activity that is to be repeated, as its worker has sent it."""

from __future__ import annotations

from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo

_TOO_LARGE = "Failure exceeds size limit."
"""The message that Temporal puts before a failure of more than 4 KiB, of which it keeps the beginning as the cause."""


def latest_failure(activity: PendingActivityInfo) -> Failure:
    """The failure; of a large one, as a worker in another language may send, what Temporal has kept."""
    failure = activity.last_failure
    return failure.cause if failure.message == _TOO_LARGE and failure.HasField("cause") else failure
