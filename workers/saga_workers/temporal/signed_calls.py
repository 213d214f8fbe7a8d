"""Verifies the calls to activities that a history has, and the answers to them: anybody who reaches Temporal can
complete an activity by its id.
"""

from __future__ import annotations

from hashlib import sha256

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes

from saga_workers.temporal.payload_codec import decrypted
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.payloads import ANSWER_METADATA, CALL_HEADER
from sagas.protocol.signed_content import CallSignature, answer_content, call_content, read_answer_signature
from sagas.settings.signing_keys import SigningKeys


async def is_signed_call(call: ActivityTaskScheduledEventAttributes, run: RunInfo, keys: SigningKeys) -> bool:
    """True if a worker of the project has made this call for the run."""
    signature, argument = _signature(call), await _argument(call, run)
    if signature is None or argument is None:
        return False
    content = call_content(call.activity_type.name, run.id, signature.run_id, signature.call, argument)
    return keys.verifies("call", content, signature.signature)


async def is_signed_answer(
    call: ActivityTaskScheduledEventAttributes, answer: Payload, run: RunInfo, keys: SigningKeys
) -> bool:
    """True if a worker of the project has given this answer to the call."""
    signature, argument = _signature(call), await _argument(call, run)
    if signature is None or argument is None:
        return False
    answer = await decrypted(answer, run.converter.payload_codec)
    content = {
        "activity": call.activity_type.name,
        "workflow_id": run.id,
        "call": signature.call,
        "request": sha256(argument).hexdigest(),
    }
    signed = read_answer_signature(answer.metadata.get(ANSWER_METADATA, b""))
    return keys.verifies("answer", answer_content(content, answer.data), signed)


def _signature(call: ActivityTaskScheduledEventAttributes) -> CallSignature | None:
    header = call.header.fields.get(CALL_HEADER)
    return None if header is None else CallSignature.from_header(header.data)


async def _argument(call: ActivityTaskScheduledEventAttributes, run: RunInfo) -> bytes | None:
    if len(call.input.payloads) != 1:
        return None
    return (await decrypted(call.input.payloads[0], run.converter.payload_codec)).data
