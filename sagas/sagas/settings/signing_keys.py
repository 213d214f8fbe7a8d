"""The keys of a project: they sign the starts that its clients send, so that its workers run no other definitions."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sagas.errors import UsageError
from sagas.settings.masking import remember_secret
from sagas.settings.secrets import Secret, resolve_secret
from sagas.settings.trust import require_own

KEY_FILE = Path(".saga") / "definition.key"
"""Relative to the project folder; used if the settings name no key."""

_MIN_LENGTH = 32

Purpose = Literal[
    "start",
    "decision",
    "notification",
    "redelivery",
    "report",
    "cancel",
    "detached",
    "continuation",
    "state",
    "view",
    "schedule",
    "undo",
    "call",
    "answer",
    "note",
    "outcome",
    "callback",
    "callback address",
]
"""The kind of a signed message: a signature of one kind does not hold for another."""


@dataclass(frozen=True, slots=True, repr=False)
class SigningKeys:
    """The first key signs, all of them verify. Without keys nothing is signed, and no signature is valid.

    ``shared``: the settings name them, so that all processes of the project have them, on every machine.
    """

    keys: tuple[str, ...] = ()
    shared: bool = False

    def __post_init__(self) -> None:
        for key in self.keys:
            remember_secret(key)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(_key_id(key) for key in self.keys)

    def sign(self, purpose: Purpose, content: bytes, *, preferred: str = "") -> dict[str, str] | None:
        """The signature: the id of its key, and an HMAC-SHA256. None without keys. ``preferred``: the id of the key of
        the message that is answered; its sender may not have the first key yet.
        """
        if not self.keys:
            return None
        key = next((key for key in self.keys if _key_id(key) == preferred), self.keys[0])
        return {"key": _key_id(key), "hmac": _hmac(key, purpose, content)}

    def verifies(self, purpose: Purpose, content: bytes, signature: Any) -> bool:
        """Return whether one of the keys has made this signature. ``signature`` is from any client and may be
        anything.
        """
        if not isinstance(signature, Mapping) or not isinstance(given := signature.get("hmac"), str):
            return False
        return any(
            hmac.compare_digest(_hmac(key, purpose, content).encode(), given.encode("utf-8", "replace"))
            for key in self.keys
            if _key_id(key) == signature.get("key")
        )


@cache
def _key_id(key: str) -> str:
    # It only selects the keys to verify with: if two have the same id, both are tried.
    return hashlib.sha256(f"saga key id\0{key}".encode()).hexdigest()[:12]


def is_key_id(text: str) -> bool:
    """True for the form of the id of a key; anybody can make up such a text."""
    return re.fullmatch("[0-9a-f]{12}", text) is not None


def _hmac(key: str, purpose: Purpose, content: bytes) -> str:
    return hmac.digest(key.encode(), f"saga {purpose}\0".encode() + content, "sha256").hex()


def load_keys(definition_key: str | Secret | None, root: Path, *, create: bool) -> SigningKeys:
    """The keys of ``[worker] definition_key``, else that of the project's key file. ``create``: make a missing file.

    No keys if the file is missing and cannot be made, as in a folder that is mounted read-only.

    Raises:
        UsageError: the setting cannot be resolved, a key is too short, or the file belongs to another user.
    """
    if definition_key is not None:
        keys = tuple(resolve_secret(definition_key, setting="worker.definition_key", root=root).split())
        if not keys or any(len(key) < _MIN_LENGTH for key in keys):
            raise UsageError(
                f"worker.definition_key needs keys of at least {_MIN_LENGTH} characters, separated by white space",
                help="create one with openssl rand -hex 32",
            )
        return SigningKeys(keys, shared=True)
    file = root / KEY_FILE
    with contextlib.suppress(OSError):
        if create and not file.exists():
            _create_key(file)
        require_own(file)
        return SigningKeys(tuple(file.read_text(encoding="ascii").split()))
    return SigningKeys()


def _create_key(file: Path) -> None:
    """Make the file, readable only by its owner. Of several processes at once one wins, and all use its key."""
    file.parent.mkdir(exist_ok=True)
    ignore = file.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="ascii")
    draft = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as text:
            text.write(secrets.token_hex(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)  # unlike a rename it never replaces the key of another process
    finally:
        draft.unlink()
