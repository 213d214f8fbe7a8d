"""Reads payloads that any client, or a worker of others, may have written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter

from saga_activities.value_cipher import UnknownKey
from saga_workers.temporal.data_converter import for_any_failures
from saga_workers.temporal.payload_codec import ENCRYPTED, ReadableOnly, without_codec
from sagas.workflow.json_payloads import UnreadableValue, read_payload

UNREADABLE_PAYLOAD = (KeyError, RuntimeError, TypeError, UnknownKey, UnreadableValue, ValueError)
"""The errors of the SDK when it decodes an answer, a result or a failure that cannot be read here."""

UNREADABLE_VALUE = (UnknownKey, UnreadableValue)
"""The errors of the readers of this module."""


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


def single_payload(payloads: Sequence[Payload]) -> Payload:
    """The payload of an input, an answer or a result. Any client may send none or several.

    Raises UnreadableValue if there is not exactly one.
    """
    if len(payloads) != 1:
        raise UnreadableValue("it is more than one value" if payloads else "it has no value")
    return payloads[0]


async def read_single_payload(payloads: Sequence[Payload], converter: DataConverter) -> Any:
    """The value of the :func:`single_payload`. Raises as that and :func:`read_foreign_payload`."""
    return await read_foreign_payload(single_payload(payloads), converter)


async def read_foreign_failure(failure: Failure, converter: DataConverter) -> BaseException:
    """The error of a failure; details that cannot be read are payloads as Temporal has them."""
    if converter.payload_codec is not None:
        converter = dataclasses.replace(converter, payload_codec=ReadableOnly(converter.payload_codec))
    return await for_any_failures(converter).decode_failure(failure)
