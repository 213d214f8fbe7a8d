"""Where the guard keeps what it knows about one entry of one saga."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SAGA_ID = 512
MAX_STEP = 200
"""Characters. Four bytes each, they must fit the 3,072 bytes InnoDB allows for a key."""


@dataclass(frozen=True, slots=True)
class Address:
    """One generation of one entry: ``step`` is the ledger id (``reserve#0``), ``generation`` starts at 1.

    Raises ``ValueError`` for an id a database would shorten or fold: two sagas must never share a row.
    """

    saga_id: str
    step: str
    generation: int = 1

    def __post_init__(self) -> None:
        for what, value, longest in (("saga id", self.saga_id, MAX_SAGA_ID), ("step", self.step, MAX_STEP)):
            if not value or len(value) > longest:
                raise ValueError(f"a {what} needs 1 to {longest} characters in a guarded step, not {len(value)}")
            if value != value.rstrip() or "\0" in value:
                raise ValueError(f"the {what} {value!r} must not end in white space or hold a NUL character")
        if self.generation < 1:
            raise ValueError(f"a generation starts at 1, not {self.generation}")

    def __str__(self) -> str:
        return f"{self.saga_id}/{self.step}" + (f"@{self.generation}" if self.generation > 1 else "")
