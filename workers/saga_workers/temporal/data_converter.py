"""The data converter of our clients: the SDK's own, with exact numbers and with the codec of the project."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadConverter,
    value_to_type,
)

from saga_workers.temporal.failure_numbers import with_default_numbers
from saga_workers.temporal.payload_codec import (
    ENCRYPTED,
    EncryptingCodec,
    WorkflowTaskCodec,
    payload_codec,
    without_codec,
)
from sagas.errors import UsageError
from sagas.settings import Settings
from sagas.workflow.json_payloads import json_payload, read_payload


class _ExactJson(JSONPlainPayloadConverter):
    """JSON in which a number with a fraction or an exponent is a ``Decimal``."""

    def to_payload(self, value: Any) -> Payload:
        return json_payload(value)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        value = read_payload(payload)
        return value if type_hint is None else value_to_type(type_hint, value)


class _Encrypted(EncodingPayloadConverter):
    """Names the key of a value that no codec has decrypted, as the codec does for a key that it lacks."""

    @property
    def encoding(self) -> str:
        return ENCRYPTED.decode()

    def to_payload(self, value: Any) -> Payload | None:
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        raise without_codec(payload)


# Each run of a workflow has a payload converter of its own; these have no state.
_ENCODINGS = (
    *(
        _ExactJson() if isinstance(encoding, JSONPlainPayloadConverter) else encoding
        for encoding in DefaultPayloadConverter.default_encoding_payload_converters
    ),
    _Encrypted(),
)


class ExactPayloadConverter(CompositePayloadConverter):
    """The SDK's payload converter with exact numbers."""

    def __init__(self) -> None:
        super().__init__(*_ENCODINGS)


class _AnyDetails(PayloadConverter):
    """Reads payloads that the given converter cannot read as they are."""

    def __init__(self, converter: PayloadConverter) -> None:
        self._converter = converter

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        return self._converter.to_payloads(values)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        try:
            return self._converter.from_payloads(payloads, type_hints)
        except Exception:  # noqa: BLE001 - anybody may have sent them, and the reader of the failure decides
            return [RawValue(payload) for payload in payloads]


class WorkflowFailureConverter(DefaultFailureConverter):
    """Converts failures with any details and numbers: an error would fail the workflow task again and again."""

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        if not isinstance(payload_converter, _AnyDetails):
            payload_converter = _AnyDetails(payload_converter)
        try:
            return super().from_failure(failure, payload_converter)
        except Exception:  # noqa: BLE001 - anybody may have sent it; the SDK raises errors of many types
            return super().from_failure(with_default_numbers(failure), payload_converter)


def for_workflow_tasks(converter: DataConverter) -> DataConverter:
    """The converter that a worker has for its workflow tasks: no client's payload makes it fail."""
    codec = converter.payload_codec
    if codec is None or isinstance(codec, EncryptingCodec):
        converter = dataclasses.replace(converter, payload_codec=WorkflowTaskCodec(codec))
    return for_any_failures(converter)


def with_codec(converter: DataConverter, settings: Settings) -> DataConverter:
    """The converter with the codec of the settings, unless it has one of its own.

    Raises:
        UsageError: a key of the codec cannot be read, or the package that encrypts is not installed.
    """
    if converter.payload_codec is not None:
        return converter
    return dataclasses.replace(converter, payload_codec=payload_codec(settings))


def check_codec(client: Client, settings: Settings) -> None:
    """Raise UsageError if the project encrypts, and this client, with which its worker answers, does not."""
    if settings.codec.key is not None and client.data_converter.payload_codec is None:
        raise UsageError(
            "the project encrypts what it sends to Temporal ([codec] in saga.toml), but the client of this worker does "
            "not",
            help="connect it with Client.connect(…, plugins=[SagaPlugin()])",
        )


def project_client(client: Client, settings: Settings) -> Client:
    """Return a client on the same connection that keeps numbers exact and has the codec of the project.

    A codec that the client has stays. All that our clients send and read is JSON, so another payload converter is not
    needed, whatever the given client has for its own workflows.
    """
    converter = _exact(with_codec(client.data_converter, settings))
    if _parts(converter) == _parts(client.data_converter):
        return client
    return Client(**{**client.config(), "data_converter": converter})  # pyright: ignore[reportArgumentType]


def _parts(converter: DataConverter) -> tuple[object, ...]:
    return converter.payload_converter_class, converter.failure_converter_class, converter.payload_codec


def _exact(converter: DataConverter) -> DataConverter:
    """The converter with exact numbers, and for any failures: a client also reads those of others."""
    return for_any_failures(dataclasses.replace(converter, payload_converter_class=ExactPayloadConverter))


def for_any_failures(converter: DataConverter) -> DataConverter:
    """The converter with :class:`WorkflowFailureConverter`, unless it has one of its own."""
    if converter.failure_converter_class is not DefaultFailureConverter:
        return converter
    return dataclasses.replace(converter, failure_converter_class=WorkflowFailureConverter)


EXACT_CONVERTER = _exact(DataConverter.default)
