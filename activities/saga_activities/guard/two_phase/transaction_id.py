"""The ids of prepared transactions: recognisable, short enough for each database, and not to be guessed."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from saga_activities.guard.entry_key import EntryKey

MAX_POSTGRES_BYTES = 199
"""PostgreSQL stores a transaction identifier in 200 bytes, the last of which is zero."""

XA_FORMAT = 0x53414741
"""The format id of our XA transactions: `SAGA` in ASCII."""

_XA_PART = 64
_TOKEN_BYTES = 16


def new_token() -> str:
    """The random part of an id; unique, so that neither a long key nor another database makes the same id."""
    return secrets.token_hex(_TOKEN_BYTES)


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


@dataclass(frozen=True, slots=True)
class TransactionId:
    """The id of the prepared transaction of an entry; ``token`` is stored in its row ``do`` before it is prepared.

    The key of a step is public. Without the token another role could prepare a transaction under the same id, which
    would count as the effect of the step.
    """

    entry_key: EntryKey
    token: str

    @property
    def postgres(self) -> str:
        """The step's key, cut if it is too long, and the token after `~`."""
        start = str(self.entry_key).encode()[: MAX_POSTGRES_BYTES - 1 - len(self.token)]
        return f"{start.decode(errors='ignore')}~{self.token}"

    @property
    def xa(self) -> XaId:
        """``gtrid`` is the readable start of the step's key, ``bqual`` the token."""
        key = str(self.entry_key)[:_XA_PART]
        readable = "".join(
            character if " " <= character <= "~" and character not in "'\\" else "?" for character in key
        )
        return XaId(readable.encode(), self.token.encode())
