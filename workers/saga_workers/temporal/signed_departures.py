"""Tells from the start of a run whether a bulk workflow of the project has given it one of its sagas.

Any client may start a run under the id of a saga, with any memo and any header, so only the signature counts.
"""

from __future__ import annotations

from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes

from saga_workers.temporal.foreign_payloads import UNREADABLE_VALUE, read_single_payload
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.payloads import DETACHED_HEADER
from sagas.protocol.signed_content import message_content
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.json_payloads import read_payload


async def departed_from(
    run: RunInfo, started: WorkflowExecutionStartedEventAttributes, keys: SigningKeys | None
) -> str | None:
    """The id of the bulk workflow that has started the run; None if none has. Without ``keys`` nothing is verified."""
    header = started.header.fields.get(DETACHED_HEADER)
    if header is None:
        return None
    try:
        value = await read_single_payload(started.input.payloads, run.converter)
        signature = read_payload(header)
    except UNREADABLE_VALUE:
        return None
    is_signed = keys is None or not keys.keys or keys.verifies("detached", message_content([run.id], value), signature)
    bulk_id = value.get("bulk_id") if isinstance(value, dict) else None
    return bulk_id if is_signed and isinstance(bulk_id, str) else None
