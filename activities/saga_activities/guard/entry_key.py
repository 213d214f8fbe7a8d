"""The key of the engine's rows in a participant's database."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from sagas.definition.saga_ids import UNPRINTABLE
from sagas.input_limits import MAX_SAGA_ID_BYTES

MAX_GUARD_ID = MAX_SAGA_ID_BYTES
MAX_ENTRY = 200
"""Characters. At four bytes each, both must fit the 3,072 bytes that InnoDB allows for a key."""

PARTICIPANT_PREFIX = "@"
"""The column `step` of the rows of a `@participant` begins with it, which that of no step of a saga does; their column
`saga_id` is the :func:`command_id` of the command."""

_KEPT_OF_KEY = MAX_GUARD_ID - 65
"""Characters of a longer key that stay before `-` and its SHA-256."""


def command_id(key: str) -> str:
    """The key of a command, or what stands for one that is longer than the column."""
    if len(key) <= MAX_GUARD_ID:
        return key
    return f"{key[:_KEPT_OF_KEY]}-{hashlib.sha256(key.encode()).hexdigest()}"


def command_id_prefix(begin: str) -> str:
    """The text with which the :func:`command_id` of each key begins that begins with ``begin``."""
    return begin[:_KEPT_OF_KEY]


def may_be_command_id(id: str, begin: str) -> bool:
    """Return whether ``id`` is the :func:`command_id` of a key that begins with this text, as far as it tells: of a
    longer key it has only the first characters.
    """
    if id.startswith(begin):
        return True
    return len(begin) > _KEPT_OF_KEY and len(id) == MAX_GUARD_ID and id.startswith(f"{begin[:_KEPT_OF_KEY]}-")


def fits_guard_key(saga_id: str) -> bool:
    """Return whether the tables can have rows of this id. That of a nested saga may be longer than their column."""
    return 0 < len(saga_id) <= MAX_GUARD_ID and not UNPRINTABLE.search(saga_id)


def usable_saga_id(saga_id: str | None) -> str:
    """The saga id of a header, empty if the tables cannot hold it."""
    return saga_id if saga_id and fits_guard_key(saga_id) else ""


@dataclass(frozen=True, slots=True)
class EntryKey:
    """One generation of one entry: ``entry`` is the entry id (``reserve#0``), ``generation`` starts at 1.

    ``start``: that of its saga, see :func:`sagas.protocol.origin.start_of`; empty if it does not matter.

    Raises ``ValueError`` for an id that a database would truncate or fold: two sagas must never share a row.
    """

    saga_id: str
    entry: str
    generation: int = 1
    start: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for what, value, longest in (("saga id", self.saga_id, MAX_GUARD_ID), ("step", self.entry, MAX_ENTRY)):
            if not value or len(value) > longest:
                raise ValueError(f"a {what} needs 1 to {longest} characters in a guarded step, not {len(value)}")
            if value != value.rstrip() or "\0" in value:
                raise ValueError(f"the {what} {value!r} must not end in white space or contain a NUL character")
        if self.generation < 1:
            raise ValueError(f"a generation starts at 1, not {self.generation}")

    @property
    def values(self) -> dict[str, str | int]:
        """The values of the columns `saga_id`, `step` and `generation` of its rows."""
        return {"saga_id": self.saga_id, "step": self.entry, "generation": self.generation}

    def __str__(self) -> str:
        return f"{self.saga_id}/{self.entry}" + (f"@{self.generation}" if self.generation > 1 else "")
