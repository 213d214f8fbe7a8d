"""A worker without the key of the one who asks answers a query as well, and no parked saga is hidden without one."""

from __future__ import annotations

import dataclasses

from temporalio.common import RawValue

from saga_activities.value_cipher import ValueCipher
from saga_workers.stuck.stuck_view import with_reasons
from saga_workers.temporal.data_converter import EXACT_CONVERTER
from saga_workers.temporal.payload_codec import EncryptingCodec, WorkflowTaskCodec
from sagas.protocol.saga_view import SagaView
from sagas.settings.codec import CodecKey
from sagas.workflow.json_payloads import question, raw_json


async def test_a_question_is_read_by_a_worker_without_the_key() -> None:
    codec = EncryptingCodec(ValueCipher([CodecKey("ours", bytes(32))]))
    client = dataclasses.replace(EXACT_CONVERTER, payload_codec=codec)
    worker = dataclasses.replace(EXACT_CONVERTER, payload_codec=WorkflowTaskCodec(None))
    asked, told = await client.encode([question("a random text"), raw_json("a value")])
    assert await worker.decode([asked], [str]) == ["a random text"]
    assert b"a value" not in told.SerializeToString()
    [unreadable] = await worker.decode([told], [RawValue])
    assert unreadable.payload.data == b"ours"


def test_a_parked_saga_has_a_reason_although_its_worker_tells_none() -> None:
    view = SagaView(id="s-1", saga="shop", state="PARKED", incomplete="the query failed in its worker; parked at take")
    listed = with_reasons(view, [])
    assert listed is not None
    assert listed.stuck == ("it is parked, but why is not known: the query failed in its worker; parked at take",)
    assert with_reasons(dataclasses.replace(view, state="RUNNING"), []) is None
