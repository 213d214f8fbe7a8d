"""Reads payloads that any client, or a worker of others, may have written."""

from __future__ import annotations

from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter

from saga_activities.value_cipher import UnknownKey
from saga_workers.temporal.data_converter import for_workflow_tasks
from saga_workers.temporal.payload_codec import ENCRYPTED, without_codec
from sagas.workflow.json_payloads import UnreadableValue, read_payload

UNREADABLE_PAYLOAD = (KeyError, RuntimeError, TypeError, UnknownKey, UnreadableValue, ValueError)
"""The errors of the SDK when it decodes an answer, a result or a failure that cannot be read here."""


async def read_foreign_payload(payload: Payload, converter: DataConverter) -> Any:
    """The value of a payload of JSON.

    Raises:
        UnreadableValue: it has another form.
        UnknownKey: it names a key that is not here.
    """
    if converter.payload_codec is not None:
        [payload] = await converter.payload_codec.decode([payload])
    elif payload.metadata.get("encoding") == ENCRYPTED:
        raise without_codec(payload)
    return read_payload(payload)


async def read_foreign_failure(failure: Failure, converter: DataConverter) -> BaseException:
    """The error of a failure; details that cannot be read are payloads."""
    return await for_workflow_tasks(converter).decode_failure(failure)
