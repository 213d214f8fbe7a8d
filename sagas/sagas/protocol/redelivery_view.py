"""The part of a view about the next start of a compensated saga, for its event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sagas.protocol.access_view import Timestamp
from sagas.protocol.json_view import OMITTED, JsonView


@dataclass(frozen=True, slots=True, kw_only=True)
class RedeliveryView(JsonView):
    """The event of a compensated saga that starts it again. Only the run that does it knows what has become of it."""

    number: Annotated[int, "which of the redeliveries is the next or, without `at`, was the last"]
    of: Annotated[int, "how many there are at most"]
    at: Annotated[Timestamp | None, "when the saga is started again; null: nothing more is started"] = None
    run: Annotated[str | None, "the workflow id of the run that starts it, or has recorded that nothing does"] = None
    ended: Annotated[str | None, "why that run starts nothing any more", OMITTED] = None
    unserved: Annotated[
        bool | None,
        "true: the start was refused, or the last one was compensated, and nobody has closed that",
        OMITTED,
    ] = None

    @property
    def is_due(self) -> bool:
        """True while the saga is going to be started again."""
        return self.at is not None and self.ended is None

    @property
    def text(self) -> str:
        """One clause, with its subject."""
        if self.ended is not None:
            return f"its event is not offered again: {self.ended}"
        if self.at is not None:
            return f"its event is offered again at {self.at}, {self.number} of {self.of}"
        return f"its event has been offered again {self.number} of {self.of} times; nothing more is started"
