"""Values of sagas in the engine's tables, encrypted if the project has a codec: results and origins in the guard, row
images, and snapshots in the ledger.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.result_codec import decode_encrypted, encode_encrypted, holds_values
from saga_activities.guard.unreadable_rows import ChangedRow, MissingRowKey
from saga_activities.value_cipher import (
    ENCRYPTED_TEXT,
    NotOfThisKey,
    UnknownKey,
    ValueCipher,
    encrypted_text,
    key_and_data,
)
from saga_activities.value_places import ValuePlace
from sagas.protocol.origin import ENCRYPTED_VALUES, VALUES_OF_ORIGIN
from sagas.settings.codec import load_codec_keys
from sagas.settings.connections import SqlConnection
from sagas.text.exact_json import decode_json, encode_json

ENCRYPTED_BYTES = b"saga:encrypted\0"
_KEY_ID_BYTES = 12
_KEY_ID = re.compile(f"[0-9a-f]{{{_KEY_ID_BYTES}}}")
_OPTION = "saga_stored_values"


class StoredValues:
    """Turns values into what the rows have at a place, and back. Without a cipher both are the same.

    ``encrypts_outbox``: events that wait for the relay are encrypted as well.
    """

    def __init__(self, cipher: ValueCipher | None = None, *, encrypts_outbox: bool = False) -> None:
        self._cipher = cipher
        self.encrypts_outbox = encrypts_outbox and cipher is not None

    def encrypt_result(self, place: ValuePlace, text: str | None) -> str | None:
        """The JSON to store for a result. Markers without values stay readable: commands without the key read them."""
        if self._cipher is None or text is None or not holds_values(text):
            return text
        data = base64.b64encode(self._cipher.encrypt_at(place, text.encode("utf-8", "surrogatepass"))).decode()
        return encode_encrypted(self._cipher.key_id, data)

    def decrypt_result(self, place: ValuePlace, text: str | None) -> str | None:
        """The text that :meth:`encrypt_result` was given. Raises UnreadableRow."""
        if (encrypted := decode_encrypted(text)) is None:
            return text
        key_id, data = encrypted
        try:
            return self._decrypted(place, key_id, base64.b64decode(data, validate=True)).decode(
                "utf-8", "surrogatepass"
            )
        except ValueError:
            raise ChangedRow from None

    def encrypt_origin(self, place: ValuePlace, text: str | None) -> str | None:
        """The JSON to store for an origin: its values are encrypted, the rest says which saga it is of."""
        if self._cipher is None or text is None:
            return text
        origin = decode_json(text)
        values = {name: origin.pop(name) for name in VALUES_OF_ORIGIN if name in origin}
        if values:
            # First, so that `saga doctor` finds the id of the key at one place of the text.
            origin = {ENCRYPTED_VALUES: encrypted_text(self._cipher, place, encode_json(values)), **origin}
        return encode_json(origin).decode()

    def decrypt_origin(self, place: ValuePlace, text: str) -> str:
        """The text that :meth:`encrypt_origin` was given. Raises UnreadableRow."""
        try:
            origin = decode_json(text)
            encrypted = origin.pop(ENCRYPTED_VALUES, None)
            if encrypted is None:
                return text
            return encode_json({**origin, **decode_json(self.decrypt_json(place, encrypted) or "{}")}).decode()
        except (AttributeError, TypeError, ValueError):
            raise ChangedRow from None

    def encrypt_json(self, place: ValuePlace, text: str | None) -> str | None:
        """The text to store for one that is JSON, or that does not begin like an encrypted one."""
        if self._cipher is None or text is None:
            return text
        return encrypted_text(self._cipher, place, text.encode("utf-8", "surrogatepass"))

    def decrypt_json(self, place: ValuePlace, text: str | None) -> str | None:
        """The text that :meth:`encrypt_json` was given. Raises UnreadableRow."""
        if text is None or not text.startswith(ENCRYPTED_TEXT):
            return text
        try:
            return self._decrypted(place, *key_and_data(text)).decode("utf-8", "surrogatepass")
        except ValueError:
            raise ChangedRow from None

    def encrypt_bytes(self, place: ValuePlace, data: bytes | None) -> bytes | None:
        """The bytes to store for a snapshot."""
        if self._cipher is None or data is None:
            return data
        return ENCRYPTED_BYTES + self._cipher.key_id.encode() + self._cipher.encrypt_at(place, data)

    def decrypt_bytes(self, place: ValuePlace, data: bytes) -> bytes:
        """The bytes that :meth:`encrypt_bytes` was given. Raises UnreadableRow."""
        if not data.startswith(ENCRYPTED_BYTES):
            return data
        encrypted = data.removeprefix(ENCRYPTED_BYTES)
        return self._decrypted(place, encrypted[:_KEY_ID_BYTES].decode(errors="replace"), encrypted[_KEY_ID_BYTES:])

    def _decrypted(self, place: ValuePlace, key_id: str, data: bytes) -> bytes:
        if _KEY_ID.fullmatch(key_id) is None:
            raise ChangedRow
        if self._cipher is None:
            raise MissingRowKey("a stored value of this saga is encrypted, and the project has no [codec] key")
        try:
            return self._cipher.decrypt_at(place, key_id, data)
        except UnknownKey as error:
            raise MissingRowKey(error.message) from None
        except NotOfThisKey:
            raise ChangedRow from None


def is_encrypted(text: str | None) -> bool:
    """True for a text as :meth:`StoredValues.encrypt_json` returns it with a cipher."""
    return text is not None and text.startswith(ENCRYPTED_TEXT)


PLAIN = StoredValues()


def stored_values_of(connection: SqlConnection) -> StoredValues:
    """The form of the values in the rows of a connection. Raises UsageError if a key of the codec cannot be read."""
    keys = load_codec_keys(connection.codec_key, connection.root)
    return StoredValues(ValueCipher(keys) if keys else None, encrypts_outbox=connection.encrypts_outbox)


def options_of(values: StoredValues) -> dict[str, Any]:
    """The execution options of an engine whose rows have their values in this form."""
    return {_OPTION: values}


def stored_values(engine: AsyncEngine) -> StoredValues:
    """The form of the values in the rows that are read and written over this engine."""
    return engine.get_execution_options().get(_OPTION, PLAIN)
