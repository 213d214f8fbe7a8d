"""The ids of prepared transactions: derived from the step's key, recognisable, and short enough for each database."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from saga_activities.guard.tables import EntryKey

MAX_POSTGRES_BYTES = 199
"""PostgreSQL stores a transaction identifier in 200 bytes, the last of which is zero."""

XA_FORMAT = 0x53414741
"""The format id of our XA transactions: `SAGA` in ASCII."""

_XA_PART = 64
_HASH_DIGITS = 32


def postgres_transaction_id(entry_key: EntryKey) -> str:
    """The step's key; one that is too long is cut, and a hash of all of it follows after `~`."""
    key = str(entry_key)
    if len(key.encode()) <= MAX_POSTGRES_BYTES:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
    start = key.encode()[: MAX_POSTGRES_BYTES - 1 - _HASH_DIGITS].decode(errors="ignore")
    return f"{start}~{digest}"


@dataclass(frozen=True, slots=True)
class XaId:
    """An XA transaction id: ``gtrid`` and ``bqual`` have at most 64 bytes each."""

    gtrid: bytes
    bqual: bytes
    format: int = XA_FORMAT

    @property
    def sql(self) -> str:
        """The id as XA statements take it: hexadecimal, so that nothing needs quoting."""
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format}"


def xa_transaction_id(entry_key: EntryKey, database: str) -> XaId:
    """``gtrid`` is the readable start of the step's key, ``bqual`` a hash of all of it and of the database.

    XA ids are unique in a server, and keys only in a database.
    """
    key = str(entry_key)
    readable = "".join(character if " " <= character <= "~" and character not in "'\\" else "?" for character in key)[
        :_XA_PART
    ]
    return XaId(readable.encode(), hashlib.sha256(f"{database}\0{key}".encode()).hexdigest().encode())
