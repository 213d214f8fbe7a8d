"""The origin of a saga: what it was started with. The guard stores it with the first effects, so that ``saga resume``
can start the saga again after its run has been deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.protocol.payloads import input_digest
from sagas.text.exact_json import decode_json, encode_json

MAX_ORIGIN = 262_144
"""Bytes. A larger input is left out, and ``saga resume`` asks for it; its digest proves that it is the same."""


VALUES_OF_ORIGIN = ("input", "vars")
"""The keys of a stored origin whose values are those of the user."""

ENCRYPTED_VALUES = "encrypted"
"""The key of a stored origin that replaces them in a project that encrypts values."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The start of a run. ``digest``: that of the definition. ``started_at``: seconds since the epoch.

    ``has_input``: False if the input was too large, or has `x-sensitive` values, which no other database may keep.
    ``parent``: the id of the saga it is nested in. ``unreadable``: why its input and variables cannot be read here.
    """

    saga: str
    digest: str
    input_digest: str
    started_at: float
    generation: int = 1
    input: Any = None
    has_input: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    unreadable: str | None = None


def encode_origin(origin: Origin) -> str:
    """The JSON text that the guard stores with an effect."""
    data: dict[str, Any] = {
        "saga": origin.saga,
        "digest": origin.digest,
        "started_at": origin.started_at,
        "input_digest": origin.input_digest,
    }
    if origin.generation > 1:
        data["generation"] = origin.generation
    if origin.variables:
        data["vars"] = dict(origin.variables)
    if origin.parent is not None:
        data["parent"] = origin.parent
    whole = encode_json({**data, "input": origin.input}) if origin.has_input else b""
    return (whole if 0 < len(whole) <= MAX_ORIGIN else encode_json(data)).decode()


def decode_origin(text: str) -> Origin:
    """The reverse of :func:`encode_origin`. Raises ValueError for another text, which anybody may write."""
    data = decode_json(text)
    try:
        return Origin(
            data["saga"],
            data["digest"],
            data["input_digest"],
            float(data["started_at"]),
            data.get("generation", 1),
            data.get("input"),
            "input" in data,
            data.get("vars", {}),
            data.get("parent"),
        )
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("no origin of a saga") from error


_KEPT_NAMES = ("saga", "digest", "started_at", "generation", "parent")
"""The fields that an origin keeps when the values of its saga are forgotten: they say which saga the row is of."""


def forgotten_origin(text: str) -> str | None:
    """An origin without the input and the variables, and without the digest, by which an input can be guessed.

    None for any other text.
    """
    try:
        data = decode_json(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return encode_json({name: data[name] for name in _KEPT_NAMES if name in data} | {"input_digest": ""}).decode()


def same_start(origin: Origin, saga: str, input: Any) -> bool:
    """Return whether a run of this saga with this input has this origin."""
    return origin.saga == saga and origin.input_digest == input_digest(input)
