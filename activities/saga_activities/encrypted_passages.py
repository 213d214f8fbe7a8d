"""Finds the encrypted values in a text and decrypts them: for people who read dead letters or rows of tables."""

from __future__ import annotations

import base64
import re

from saga_activities.value_cipher import NotOfThisKey, UnknownKey, ValueCipher

_PASSAGE = re.compile(
    rb"saga:encrypted:([0-9a-f]{12}):([A-Za-z0-9+/]+={0,2})"
    rb'|\{\\*"saga:encrypted\\*":\s*\{\\*"key\\*":\s*\\*"([0-9a-f]{12})\\*",\s*\\*"data\\*":\s*\\*"([A-Za-z0-9+/]+={0,2})\\*"\}\}'
)
"""The texts of :func:`saga_activities.value_cipher.encrypted_text`, and those of results in the guard's rows. A result
in a JSON document may have its quotation marks escaped.
"""


def decrypt_passages(cipher: ValueCipher, text: bytes) -> tuple[bytes, int]:
    """The text with its encrypted values in clear, and the number of those that no key here has encrypted."""
    unread = 0

    def in_clear(match: re.Match[bytes]) -> bytes:
        nonlocal unread
        key_id, data = match[1] or match[3], match[2] or match[4]
        try:
            return cipher.decrypt_at(None, key_id.decode(), base64.b64decode(data, validate=True))
        except (UnknownKey, NotOfThisKey, ValueError):
            unread += 1
            return match[0]

    return _PASSAGE.sub(in_clear, text), unread
