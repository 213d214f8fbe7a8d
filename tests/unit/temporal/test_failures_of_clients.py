"""Failures whose details name a key that the project does not have."""

from __future__ import annotations

import dataclasses

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.exceptions import ApplicationError

from saga_activities.value_cipher import ValueCipher
from saga_workers.temporal.data_converter import EXACT_CONVERTER
from saga_workers.temporal.foreign_payloads import read_foreign_failure
from saga_workers.temporal.payload_codec import ENCRYPTED, EncryptingCodec
from sagas.settings.codec import CodecKey
from sagas.workflow.failures import activity_outcome


async def test_details_with_an_invented_key_are_left_out() -> None:
    codec = EncryptingCodec(ValueCipher([CodecKey("ours", bytes(32))]))
    forged = Payload(metadata={"encoding": ENCRYPTED, "encryption-key-id": b"evil"}, data=bytes(40))
    info = ApplicationFailureInfo(type="Rejected", details=Payloads(payloads=[forged]))
    converter = dataclasses.replace(EXACT_CONVERTER, payload_codec=codec)
    error = await read_foreign_failure(Failure(message="no", application_failure_info=info), converter)
    assert isinstance(error, ApplicationError)
    failure = activity_outcome(error).failure
    assert failure is not None
    assert (failure.type, failure.message) == ("Rejected", "no")
