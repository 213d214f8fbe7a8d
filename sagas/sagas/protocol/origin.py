"""The origin of a saga: what it was started with. The guard stores it with the first effects, so that ``saga resume``
can start the saga again after its run has been deleted, and a reference to it with every other one: another saga may
have used the same id, and then the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.protocol.payloads import input_digest
from sagas.text.digests import sha256_hex
from sagas.text.exact_json import decode_json, encode_json

MAX_ORIGIN = 262_144
"""Bytes. A larger input is left out, and ``saga resume`` asks for it; its digest proves that it is the same."""


VALUES_OF_ORIGIN = ("input", "vars")
"""The keys of a stored origin whose values are those of the user."""

ENCRYPTED_VALUES = "encrypted"
"""The key of a stored origin that replaces them in a project that encrypts values."""

_SHORT_DIGEST = 16
"""Characters of a digest that tell two inputs of one id apart."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The start of a run. ``digest``: that of the definition. ``started_at``: seconds since the epoch.

    ``has_input``: False if the input was too large, or has `x-sensitive` values, which no other database may keep.
    ``parent``: the id of the saga it is nested in. ``root_start``: the :func:`start_of` the root saga, if it is nested.
    ``unreadable``: why its input and variables cannot be read here. ``ledger``: the id of the ledger of the worker that
    has recorded the effect; empty without one.

    A reference has no ``digest``. Its ``input_digest``, and that of an origin whose values are forgotten, may be the
    beginning of the digest, or empty: see :func:`may_equal`.
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
    root_start: str = ""
    ledger: str = ""

    @property
    def is_whole(self) -> bool:
        """False for a reference."""
        return self.digest != ""

    @property
    def whole_digest(self) -> str | None:
        """The digest of the input; None if only its beginning is known, or nothing."""
        return self.input_digest if len(self.input_digest) > _SHORT_DIGEST else None

    @property
    def start(self) -> tuple[str, float, int]:
        """The start that it tells of, which a reference has as well."""
        return self.saga, self.started_at, self.generation


def reference_to(origin: Origin, *, is_short: bool = False) -> Origin:
    """A reference to an origin that a guard has; a short one has the beginning of the digest of the input."""
    # A run that repeats its parent may start a nested saga with another input, and its effects are the same ones.
    digest = origin.input_digest if origin.parent is None else ""
    if is_short:
        digest = digest[:_SHORT_DIGEST]
    return Origin(origin.saga, "", digest, origin.started_at, origin.generation, root_start=origin.root_start)


def encode_origin(origin: Origin) -> str:
    """The JSON text that the guard stores with an effect."""
    data: dict[str, Any] = {"saga": origin.saga, "started_at": origin.started_at}
    if origin.digest:
        data["digest"] = origin.digest
    if origin.input_digest:
        data["input_digest"] = origin.input_digest
    if origin.generation > 1:
        data["generation"] = origin.generation
    if origin.variables:
        data["vars"] = dict(origin.variables)
    if origin.parent is not None:
        data["parent"] = origin.parent
    if origin.root_start:
        data["root_start"] = origin.root_start
    if origin.ledger:
        data["ledger"] = origin.ledger
    whole = encode_json({**data, "input": origin.input}) if origin.has_input else b""
    return (whole if 0 < len(whole) <= MAX_ORIGIN else encode_json(data)).decode()


def decode_origin(text: str) -> Origin:
    """The reverse of :func:`encode_origin`. Raises ValueError for another text, which anybody may write."""
    data = decode_json(text)
    try:
        return Origin(
            data["saga"],
            data.get("digest", ""),
            data.get("input_digest", ""),
            float(data["started_at"]),
            data.get("generation", 1),
            data.get("input"),
            "input" in data,
            data.get("vars", {}),
            data.get("parent"),
            root_start=data.get("root_start", ""),
            ledger=data.get("ledger", ""),
        )
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("no origin of a saga") from error


def with_ledger(text: str | None, ledger: str) -> str | None:
    """A stored origin as a worker with this ledger records it."""
    if text is None or not ledger:
        return text
    return f'{text.removesuffix("}")},"ledger":{encode_json(ledger).decode()}}}'  # an origin may be large


_KEPT_NAMES = ("saga", "digest", "started_at", "generation", "parent", "ledger")
"""The fields that an origin keeps when the values of its saga are forgotten: they say which saga the row is of."""


def forgotten_origin(text: str) -> str | None:
    """An origin without the input and the variables, and without the digests, by which an input can be guessed.

    None for any other text.
    """
    try:
        data = decode_json(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return encode_json({name: data[name] for name in _KEPT_NAMES if name in data}).decode()


def start_of(saga: str, input_digest: str) -> str:
    """A short text for what a saga is known by besides its id: the tables of locks have it, and only compare it."""
    return sha256_hex(f"{saga}\0{input_digest[:_SHORT_DIGEST]}")[:_SHORT_DIGEST] if input_digest else ""


def start_of_effect(origin: str | None) -> str:
    """The :func:`start_of` the root saga of the one with this origin; empty if it says too little."""
    if origin is None:
        return ""
    try:
        return root_start_of(decode_origin(origin))
    except ValueError:
        return ""


def root_start_of(origin: Origin) -> str:
    """The :func:`start_of` the root saga, which is the one with this origin unless that is nested. A saga hands it to
    those nested in it: a run that repeats it may start them with another input, so that does not tell them apart.
    """
    if origin.root_start or origin.parent is not None:
        return origin.root_start
    return start_of(origin.saga, origin.input_digest)


def same_owner(stored: str, own: str | None) -> bool:
    """Return whether two texts of :func:`start_of` may be of the same saga: an empty one may be of any."""
    return not stored or not own or stored == own


def is_of_another_saga(stored: str | None, own: str | None) -> bool:
    """Return whether an effect with the ``stored`` origin was made by another saga, or one with another input, than
    that with its ``own`` origin, or by one that is nested in such a saga; False if either says too little.
    """
    if stored is None or own is None:
        return False
    try:
        there, here = decode_origin(stored), decode_origin(own)
    except ValueError:
        return False
    if there.saga != here.saga or not same_owner(there.root_start, here.root_start):
        return True
    is_nested = there.parent is not None or here.parent is not None
    return not is_nested and not may_equal(there.input_digest, here.input_digest)


def may_equal(first: str | None, other: str | None) -> bool:
    """Return whether two digests of inputs may be of the same one: nobody knows it of a forgotten one, and a short
    reference has only the beginning.
    """
    return not first or not other or first.startswith(other) or other.startswith(first)


def same_start(origin: Origin, saga: str, input: Any) -> bool:
    """Return whether a run of this saga with this input has this origin; False for an origin without a digest."""
    return origin.saga == saga and origin.input_digest != "" and may_equal(origin.input_digest, input_digest(input))
