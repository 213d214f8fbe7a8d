"""The data converter of our clients: the SDK's own, with exact numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    value_to_type,
)

from sagas.workflow.json_payloads import json_payload, read_payload


class _ExactJson(JSONPlainPayloadConverter):
    """JSON in which a number with a fraction or an exponent is a ``Decimal``."""

    def to_payload(self, value: Any) -> Payload:
        return json_payload(value)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        value = read_payload(payload)
        return value if type_hint is None else value_to_type(type_hint, value)


# Each run of a workflow has a payload converter of its own; these have no state.
_ENCODINGS = tuple(
    _ExactJson() if isinstance(encoding, JSONPlainPayloadConverter) else encoding
    for encoding in DefaultPayloadConverter.default_encoding_payload_converters
)


class ExactPayloadConverter(CompositePayloadConverter):
    """The SDK's payload converter with exact numbers."""

    def __init__(self) -> None:
        super().__init__(*_ENCODINGS)


def with_exact_numbers(client: Client) -> Client:
    """Return a client on the same connection that keeps numbers exact. Its codec, such as one that encrypts, stays.

    All that our clients send and read is JSON, so another payload converter is not needed, whatever the given client
    has for its own workflows.
    """
    converter = client.data_converter
    if converter.payload_converter_class is ExactPayloadConverter:
        return client
    return Client(**{**client.config(), "data_converter": _exact(converter)})  # pyright: ignore[reportArgumentType]


def _exact(converter: DataConverter) -> DataConverter:
    return dataclasses.replace(converter, payload_converter_class=ExactPayloadConverter)


EXACT_CONVERTER = _exact(DataConverter.default)
