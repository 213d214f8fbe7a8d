"""Says that a saga waits because nobody can tell what it had done before its reset."""

from __future__ import annotations

from temporalio.client import Client as Temporal

from saga_workers.temporal.attempt_failure import latest_failure
from saga_workers.temporal.temporal_runs import describe_run
from sagas.protocol.payloads import RESET_ACTIVITY
from sagas.text.printable import printable_line


async def unanswered_reset(temporal: Temporal, workflow_id: str) -> str | None:
    """The reason why the newest run of the workflow waits, if it was reset, and the look-up of what the saga had done
    before has failed; None otherwise. Raises RPCError.
    """
    described = await describe_run(temporal, workflow_id)
    if described is None or not described.run.running:
        return None
    for activity in described.raw.pending_activities:
        if activity.activity_type.name == RESET_ACTIVITY and activity.HasField("last_failure"):
            why = printable_line(latest_failure(activity).message)
            return f"the run was reset, and does nothing until it knows what the saga had done before: {why}"
    return None
