"""The keys of a project: they sign the starts that its clients send, so that its workers run no other definitions."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from sagas.errors import UsageError
from sagas.settings.forms import TextOrSecret, one_of
from sagas.settings.masking import remember_secret
from sagas.settings.secrets import Secret, resolve_secret
from sagas.settings.table import Table, setting
from sagas.settings.trust import require_own
from sagas.text.exact_json import canonical_json, decode_json, encode_json

KEY_FILE = Path(".saga") / "definition.key"
"""Relative to the project folder; used if the settings name no key."""

_MIN_LENGTH = 32

Purpose = Literal["start", "decision", "notification", "report", "detached", "continuation", "state", "call", "answer"]
"""The kind of a signed message: a signature of one kind does not hold for another."""


class WorkerSettings(Table):
    """The definitions that workers run: those of the project and ``signed`` ones, or ``any``."""

    heading = "worker"
    summary = "Which definitions a worker runs, see [definitions](../explanation/security.md#definitions)."

    definition_key: TextOrSecret = setting(
        None,
        "the key of the project, at least 32 characters: clients sign with it what workers run. Several keys are "
        "separated by white space: the first one signs, all of them verify. Default: the key file "
        "`.saga/definition.key`, which the first command makes that needs it",
        {"env": "SAGA_DEFINITION_KEY"},
        repr=False,
    )
    accept: Annotated[Literal["signed", "any"], one_of("signed", "any")] = setting(
        "signed",
        "`signed`: the definitions of the project, and starts of others that its key has signed; `any`: whatever a "
        "client of Temporal sends",
    )


@dataclass(frozen=True, slots=True, repr=False)
class DefinitionKeys:
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

    def sign(self, purpose: Purpose, content: bytes) -> dict[str, str] | None:
        """The signature: the id of its key, and an HMAC-SHA256. None without keys."""
        if not self.keys:
            return None
        return {"key": _key_id(self.keys[0]), "hmac": _hmac(self.keys[0], purpose, content)}

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
    return hashlib.sha256(f"saga key id\0{key}".encode()).hexdigest()[:12]


def _hmac(key: str, purpose: Purpose, content: bytes) -> str:
    return hmac.digest(key.encode(), f"saga {purpose}\0".encode() + content, "sha256").hex()


def signed_json(value: Any) -> bytes:
    """Encode a JSON value as bytes to sign: equal for equal values, also after they were sent: there a float has become
    a decimal.
    """
    return canonical_json(decode_json(encode_json(value))).encode()


def start_content(workflow_id: str, header: bytes, starts: Mapping[str, Any]) -> bytes:
    """Return what is signed of a start: its run, its definition, and the input of each saga by its id.

    So nobody who reads a start can start a definition again, which may have been replaced, with anything else.
    """
    digests = [hashlib.sha256(part).hexdigest() for part in (header, signed_json(starts))]
    return encode_json([workflow_id, *digests])


def detached_content(saga_id: str, value: Any) -> bytes:
    """Return what is signed of a saga that leaves a bulk workflow: its id, and the input of its own run."""
    return signed_json({"saga_id": saga_id, "input": value})


def decision_content(saga_id: str, run_id: str, update_id: str, decision: Mapping[str, Any]) -> bytes:
    """Return what is signed of an operator's decision: all of it, for this run of the saga, and for this update.

    Temporal carries out an update of one id once in a run, so a decision cannot be repeated by who reads the history.
    """
    signed = {name: value for name, value in decision.items() if name != "signature"}
    return signed_json({"saga_id": saga_id, "run_id": run_id, "update_id": update_id, "decision": signed})


def message_content(message: Mapping[str, Any]) -> bytes:
    """Return what is signed of a message of a run: all of it but the signature."""
    return signed_json({name: value for name, value in message.items() if name != "signature"})


def call_content(activity_type: str, workflow_id: str, run_id: str, seed: str, argument: bytes) -> bytes:
    """Return what is signed of a call to an activity: which one, of which run, with which argument.

    The argument of a step's call has the ids of its saga and of its step, its operation and its generation. ``seed``:
    of the run, see :class:`sagas.workflow.run_trust.RunTrust`.
    """
    return encode_json([activity_type, workflow_id, run_id, seed, hashlib.sha256(argument).hexdigest()])


def answer_content(content: Mapping[str, Any], answer: bytes) -> bytes:
    """Return what is signed of the answer of an engine's activity. ``content``: ``activity``, ``workflow_id``, ``seed``
    of the run and the digest of the ``request``.
    """
    return signed_json({**content, "answer": hashlib.sha256(answer).hexdigest()})


def load_keys(definition_key: str | Secret | None, root: Path, *, create: bool) -> DefinitionKeys:
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
                help="openssl rand -hex 32    makes one",
            )
        return DefinitionKeys(keys, shared=True)
    file = root / KEY_FILE
    with contextlib.suppress(OSError):
        if create and not file.exists():
            _create_key(file)
        require_own(file)
        return DefinitionKeys(tuple(file.read_text(encoding="ascii").split()))
    return DefinitionKeys()


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
