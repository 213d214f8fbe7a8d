"""Verifies the calls to activities that a history has, and the answers to them: anybody who reaches Temporal can
complete an activity by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes

from saga_workers.temporal.foreign_payloads import single_payload
from saga_workers.temporal.payload_codec import decrypted
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.payloads import ANSWER_METADATA, CALL_HEADER
from sagas.protocol.signed_content import CallSignature, answer_content, call_content, read_answer_signature
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.json_payloads import UnreadableValue


async def is_signed_call(call: ActivityTaskScheduledEventAttributes, run: RunInfo, keys: SigningKeys) -> bool:
    """True if a worker of the project has made this call for the run."""
    signature, argument = _signature(call), await _argument(call, run)
    if signature is None or argument is None:
        return False
    content = call_content(call.activity_type.name, run.id, signature.run_id, signature.call, argument)
    return keys.verifies("call", content, signature.signature)


async def is_signed_answer(
    call: ActivityTaskScheduledEventAttributes, answers: Sequence[Payload], run: RunInfo, keys: SigningKeys
) -> bool:
    """True if a worker of the project has given this answer to the call. ``answers``: what its completion has."""
    signature, argument, answer = _signature(call), await _argument(call, run), await _decrypted_single(answers, run)
    if signature is None or argument is None or answer is None:
        return False
    content = {
        "activity": call.activity_type.name,
        "workflow_id": run.id,
        "call": signature.call,
        "request": sha256(argument).hexdigest(),
    }
    signed = read_answer_signature(answer.metadata.get(ANSWER_METADATA, b""))
    return keys.verifies("answer", answer_content(content, answer.data), signed)


async def is_believed_answer(
    call: ActivityTaskScheduledEventAttributes, answers: Sequence[Payload], run: RunInfo, keys: SigningKeys | None
) -> bool:
    """True if the answer counts, see :func:`is_signed_answer`. Without ``keys`` each single value does."""
    if keys is None or not keys.keys:
        return len(answers) == 1
    return await is_signed_answer(call, answers, run, keys)


def calling_run(call: ActivityTaskScheduledEventAttributes) -> str:
    """The id of the run for which the call is signed: another one in a history that repeats the calls of an earlier
    run of the id. Empty without a signature.
    """
    signature = _signature(call)
    return "" if signature is None else signature.run_id


def _signature(call: ActivityTaskScheduledEventAttributes) -> CallSignature | None:
    header = call.header.fields.get(CALL_HEADER)
    return None if header is None else CallSignature.from_header(header.data)


async def _argument(call: ActivityTaskScheduledEventAttributes, run: RunInfo) -> bytes | None:
    argument = await _decrypted_single(call.input.payloads, run)
    return None if argument is None else argument.data


async def _decrypted_single(payloads: Sequence[Payload], run: RunInfo) -> Payload | None:
    with suppress(UnreadableValue):
        return await decrypted(single_payload(payloads), run.converter.payload_codec)
    return None
