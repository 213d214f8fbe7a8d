"""The signature of a start: what it holds for, and for how long."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sagas.protocol.signed_content import signed_json
from sagas.settings.signing_keys import SigningKeys
from sagas.text.exact_json import encode_json

START_LIFETIME = 24 * 3600.0
"""Seconds between the time at which a client signs a start, by its clock, and that at which Temporal records it.

A client sends it at once, so this is for the clocks of two machines, also one that is set to a wrong time zone. What a
start waits for, such as a delay, a worker or the end of a pause, comes after it."""


def start_content(
    workflow_id: str,
    header: bytes,
    starts: Mapping[str, Any],
    earlier: Mapping[str, Any] | None = None,
    *,
    issued_at: int,
) -> bytes:
    """Return what is signed of a start: its run, its definition, the input of each saga by its id, and ``earlier``:
    what the start says of earlier runs of its sagas, such as the generation; empty for a first start. ``issued_at``:
    when it is signed, in seconds since the epoch.

    So nobody who reads a start can start a definition again, which may have been replaced, with anything else, nor make
    the effects of a saga that has ended once more; and none of it after the lifetime of the signature.
    """
    parts = (header, signed_json(starts), signed_json(earlier or {}))
    digests = [hashlib.sha256(part).hexdigest() for part in parts]
    return encode_json([workflow_id, *digests, issued_at])


def sign_start(
    keys: SigningKeys,
    workflow_id: str,
    header: bytes,
    starts: Mapping[str, Any],
    earlier: Mapping[str, Any] | None = None,
    *,
    at: float,
) -> dict[str, Any] | None:
    """Return the signature of a start that is sent now, at the time ``at``; None without keys."""
    content = start_content(workflow_id, header, starts, earlier, issued_at=int(at))
    signature = keys.sign("start", content)
    return None if signature is None else {**signature, "issued_at": int(at)}


def verifies_start(
    keys: SigningKeys,
    signature: Any,
    workflow_id: str,
    header: bytes,
    starts: Mapping[str, Any],
    earlier: Mapping[str, Any] | None = None,
    *,
    at: float | None,
) -> bool:
    """Return whether one of the keys has signed this start, and not long before or after the time ``at`` at which
    Temporal has recorded it; None for any time. ``signature`` is from any client and may be anything.

    Raises like :func:`signed_json` for a malformed start.
    """
    issued_at = signature.get("issued_at") if isinstance(signature, Mapping) else None
    if type(issued_at) is not int or (at is not None and abs(at - issued_at) > START_LIFETIME):
        return False
    return keys.verifies("start", start_content(workflow_id, header, starts, earlier, issued_at=issued_at), signature)
