"""AES-256-GCM with the keys of `[codec]`: the first key encrypts, all of them decrypt."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from saga_activities.value_places import PLACE_BYTES, ValuePlace, place_digest
from sagas.errors import SagaError, UsageError
from sagas.settings.codec import CodecKey
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class UnknownKey(SagaError):
    """A value is encrypted with a key that this process does not have."""


class NotOfThisKey(Exception):
    """The key that a value names has not encrypted it, or not for the place where it is."""


class ValueCipher:
    """Encrypts and decrypts values."""

    def __init__(self, keys: Sequence[CodecKey]) -> None:
        """Raises UsageError if the package that encrypts is not installed."""
        self.key_id = keys[0].id
        """The id of the key that encrypts."""
        self._ciphers = {key.id: _cipher(key.secret) for key in keys}

    def has_key(self, key_id: str) -> bool:
        return key_id in self._ciphers

    def encrypt(self, value: bytes) -> bytes:
        """The nonce of 12 bytes, and the encrypted value with its tag. It belongs to no place: those have Temporal's
        payloads, of which the codec does not know the workflow.
        """
        return self._encrypt(value, None)

    def encrypt_at(self, place: ValuePlace, value: bytes) -> bytes:
        """The digest of a place, and a value that can be decrypted there only."""
        digest = place_digest(place)
        return digest + self._encrypt(value, digest)

    def decrypt(self, key_id: str, value: bytes) -> bytes:
        """The value that :meth:`encrypt` was given, with the key of this id.

        Raises:
            UnknownKey: there is no such key.
            NotOfThisKey: another key has encrypted it, or for a place, or it was changed.
        """
        return self._decrypt(key_id, value, None)

    def decrypt_at(self, place: ValuePlace | None, key_id: str, value: bytes) -> bytes:
        """The value that :meth:`encrypt_at` was given with this place; None stands for the place that the value names.

        Raises as :meth:`decrypt` does.
        """
        digest, encrypted = value[:PLACE_BYTES], value[PLACE_BYTES:]
        return self._decrypt(key_id, encrypted, digest if place is None else place_digest(place))

    def _encrypt(self, value: bytes, associated: bytes | None) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[self.key_id].encrypt(nonce, value, associated)

    def _decrypt(self, key_id: str, value: bytes, associated: bytes | None) -> bytes:
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise UnknownKey(
                f"a value is encrypted with the key {printable_line(shorten(key_id))}, which [codec] key does not have",
                help="add the earlier key to [codec] key, after the present one",
            )
        try:
            return cipher.decrypt(value[:_NONCE_BYTES], value[_NONCE_BYTES:], associated)
        except (InvalidTag, ValueError):
            raise NotOfThisKey from None


ENCRYPTED_TEXT = "saga:encrypted:"
"""The beginning of an encrypted value as text: no JSON begins so."""


def encrypted_text(cipher: ValueCipher, place: ValuePlace, value: bytes) -> str:
    """A value, encrypted for its place, as text that names its key."""
    return f"{ENCRYPTED_TEXT}{cipher.key_id}:{base64.b64encode(cipher.encrypt_at(place, value)).decode()}"


def key_and_data(text: str) -> tuple[str, bytes]:
    """The id of the key and the encrypted data of a text of :func:`encrypted_text`. Raises ValueError."""
    key_id, _, data = text.removeprefix(ENCRYPTED_TEXT).partition(":")
    return key_id, base64.b64decode(data, validate=True)


def _cipher(secret: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError(
            "[codec] needs the package cryptography, which is not installed",
            help='pip install "saga-orchestrator[codec]"',
        ) from None
    return AESGCM(secret)
