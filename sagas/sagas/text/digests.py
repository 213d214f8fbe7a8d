"""Names of fixed length for texts: the same in expressions and in the keys of requests."""

from __future__ import annotations

from hashlib import sha256
from uuid import NAMESPACE_OID, uuid5


def sha256_hex(text: str) -> str:
    """SHA-256 of the text in UTF-8, as 64 hexadecimal digits."""
    return sha256(text.encode()).hexdigest()


def name_uuid(text: str) -> str:
    """The UUID of version 5 (RFC 9562) of the text, in the namespace of object identifiers."""
    return str(uuid5(NAMESPACE_OID, text))
