"""The payload codec of `[codec]`: it encrypts everything that clients and workers send to Temporal.

The format is that of the encryption samples of Temporal's SDKs, so that a worker or client in another language can use
the codec of its sample with the same key.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import BinaryNullPayloadConverter, PayloadCodec

from saga_activities.value_cipher import NotOfThisKey, UnknownKey, ValueCipher
from sagas.settings import Settings
from sagas.settings.codec import load_codec_keys
from sagas.workflow.json_payloads import MISSING_KEY_ENCODING, UNENCRYPTED

ENCRYPTED = b"binary/encrypted"
"""The encoding of an encrypted payload."""

_KEY_ID = "encryption-key-id"
_NULL = BinaryNullPayloadConverter().encoding.encode()


class EncryptingCodec(PayloadCodec):
    """Encrypts payloads with the first key; decrypts those of every key.

    Payloads in clear are left as they are: clients without the codec send them, and runs from the time before it have
    them. So are those that no key of the project has made; what reads them refuses their encoding. An error would end
    in the workflow task, which would fail again and again because of a signal that anybody may have sent.

    A null is never encrypted: Temporal deletes a memo field by it, such as a claim about the end of a saga that came
    with a start. Nor is :func:`sagas.workflow.json_payloads.question`.
    """

    def __init__(self, cipher: ValueCipher) -> None:
        self._cipher = cipher

    @property
    def key_id(self) -> str:
        """The id of the key that encrypts."""
        return self._cipher.key_id

    def has_key(self, key_id: str) -> bool:
        """True if it decrypts what this key has encrypted."""
        return self._cipher.has_key(key_id)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads, encrypted."""
        return [self.encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads in clear. Raises :class:`saga_activities.value_cipher.UnknownKey`."""
        return [self.decrypt(payload) for payload in payloads]

    def encrypt(self, payload: Payload) -> Payload:
        """One payload, encrypted; a null or a question as it is."""
        if payload.metadata.get("encoding") == _NULL or UNENCRYPTED in payload.metadata:
            return payload
        metadata = {"encoding": ENCRYPTED, _KEY_ID: self._cipher.key_id.encode()}
        return Payload(metadata=metadata, data=self._cipher.encrypt(payload.SerializeToString()))

    def decrypt(self, payload: Payload) -> Payload:
        """One payload in clear. Raises :class:`saga_activities.value_cipher.UnknownKey`."""
        if payload.metadata.get("encoding") != ENCRYPTED:
            return payload
        key_id = payload.metadata.get(_KEY_ID, b"").decode(errors="replace")
        try:
            return Payload.FromString(self._cipher.decrypt(key_id, payload.data))
        except (NotOfThisKey, DecodeError):
            return payload


class WorkflowTaskCodec(PayloadCodec):
    """The codec of workflow tasks: a payload whose key is missing becomes one that names the key. Without a ``codec``
    every key is missing: a project that begins to encrypt has workers with and without one for a while.

    An error would fail the task for whatever message has the payload; the run itself decides what it can do without.
    """

    def __init__(self, codec: EncryptingCodec | None) -> None:
        self._codec = codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads, encrypted."""
        return list(payloads) if self._codec is None else await self._codec.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads in clear."""
        return [self._decode(payload) for payload in payloads]

    def _decode(self, payload: Payload) -> Payload:
        if missing_key_id(payload, self._codec) is None:
            return payload if self._codec is None else self._codec.decrypt(payload)
        key_id = payload.metadata.get(_KEY_ID, b"")
        return Payload(metadata={"encoding": MISSING_KEY_ENCODING}, data=key_id)


class ReadableOnly(PayloadCodec):
    """Decodes the payloads that ``codec`` can decode; the others stay as they are."""

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads as ``codec`` encodes them."""
        return await self._codec.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """The payloads in clear."""
        return [await decrypted(payload, self._codec) for payload in payloads]


async def decrypted(payload: Payload, codec: PayloadCodec | None) -> Payload:
    """A payload in its stored form, decrypted; as it is if the project does not have its key."""
    if codec is None:
        return payload
    try:
        [clear] = await codec.decode([payload])
    except UnknownKey:
        return payload
    return clear


def missing_key_id(payload: Payload, codec: EncryptingCodec | None) -> str | None:
    """The id of the key that a payload in its stored form names, if that is encrypted and the key is not in ``codec``.

    Any client can write a payload that names any key.
    """
    if payload.metadata.get("encoding") != ENCRYPTED:
        return None
    key_id = payload.metadata.get(_KEY_ID, b"").decode(errors="replace")
    return None if codec is not None and codec.has_key(key_id) else key_id


def is_encrypted_as(payload: Payload, codec: EncryptingCodec | None) -> bool:
    """Return whether a payload in its stored form is what ``codec`` makes of it: encrypted with its first key, or in
    clear without a codec.
    """
    if payload.metadata.get("encoding") != ENCRYPTED:
        return codec is None
    return codec is not None and payload.metadata.get(_KEY_ID) == codec.key_id.encode()


def without_codec(payload: Payload) -> UnknownKey:
    """The error for an encrypted payload in a process without a codec."""
    return UnknownKey(f"a value is encrypted with {missing_key_id(payload, None)!r:.80}, and there is no [codec]")


def payload_codec(settings: Settings) -> EncryptingCodec | None:
    """The codec of the settings; None without a key.

    Raises:
        UsageError: a key cannot be read, or the package that encrypts is not installed.
    """
    keys = load_codec_keys(settings.codec.key, settings.root)
    return EncryptingCodec(ValueCipher(keys)) if keys else None
