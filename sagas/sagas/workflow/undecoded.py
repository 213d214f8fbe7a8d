"""Payloads that are encrypted with a key which this worker lacks.

Any client may invent a key, so a message or an answer with one must not hold a run up for ever. A worker that has
ignored one records that, so that a worker with the key also ignores it in a replay.
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.api.common.v1 import Payload

from sagas.protocol.outcomes import Failure
from sagas.workflow.json_payloads import missing_value_key, require_value_key
from sagas.workflow.run_trust import run_trust

READS_QUERY = "reads"
"""The query whether the worker of a run can decrypt the argument: null if it can, else the id of the key it lacks."""

UNDECODED_ANSWER = Failure(
    "UndecodedAnswer",
    "the answer is encrypted with a key that no worker has, so it is not known what the attempt has done",
)


def is_undecoded(payload: Payload, id: str, *, waits: bool) -> bool:
    """True if the run goes on without the payload, because this worker lacks its key. ``id``: unique in the run.

    Raises KeyMissing in a replay of a run that has read the payload. ``waits``: also raises it for a few minutes in
    which another worker may have the key.
    """
    marker = f"undecoded {id}"
    if workflow.unsafe.is_replaying():
        if workflow.patched(marker):
            return True
        require_value_key(payload)
        return False
    if missing_value_key(payload) is None:
        return False
    if waits and _awaits_key(marker):
        require_value_key(payload)
    return workflow.patched(marker)


def _awaits_key(marker: str) -> bool:
    trust = run_trust()
    if trust is None:
        return False
    with workflow.unsafe.sandbox_unrestricted(), workflow.unsafe.imports_passed_through():
        return trust.project.awaits_key(f"{workflow.info().run_id} {marker}")
