"""The record of a batch: what `saga start --from` reports while it starts rows, and what operators ask of it.

Any client of Temporal may send these values, so everything that is read is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import Any, Literal, Self, get_args

from sagas.protocol.saga_view import ViewState
from sagas.text.json_values import encodable

OPENED_SIGNAL = "opened"
PROGRESS_SIGNAL = "progress"
CLOSED_SIGNAL = "closed"
PAUSE_SIGNAL = "pause"
RESUME_SIGNAL = "resume"
CANCEL_SIGNAL = "cancel"
RECORD_QUERY = "batch"

BatchState = Literal["STARTING", "PAUSED", "CANCELLED", "STARTED", "STOPPED", "INTERRUPTED"]
"""STARTED: all rows are. STOPPED: the command ended before. INTERRUPTED: nothing was heard of the command any more."""

MAX_TEXT = 500
MAX_REFUSALS = 10
MAX_REFUSAL = 300
"""Characters of one reason: each report of the command has all of them again."""
MAX_COUNT = 2**53
_STATES: frozenset[str] = frozenset(get_args(ViewState))


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The record of a batch. ``client`` is the command that starts its rows; a later one takes over.

    ``processed`` = ``started`` + ``existing`` (existed already) + ``refused`` rows; ``refusals``: why the first of them
    were, with file and line. ``ended``: sagas by state, as far as the command has waited for them. ``seconds``: how
    long it has been starting. ``stopped``: why it stopped early.
    """

    id: str
    saga: str = ""
    bulk: bool = False
    client: str = ""
    total: int = 0
    started: int = 0
    existing: int = 0
    refused: int = 0
    refusals: tuple[str, ...] = ()
    ended: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    state: BatchState = "STARTING"
    stopped: str | None = None
    by: str | None = None
    """The operator who paused or cancelled the batch."""

    @property
    def processed(self) -> int:
        return self.started + self.existing + self.refused

    @property
    def rate(self) -> float | None:
        """Rows per second."""
        return self.processed / self.seconds if self.seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"refusals": list(self.refusals)}

    @classmethod
    def from_json(cls, id: str, value: Any) -> Self:
        """Return what can be read of a record; the rest has its default."""
        record = cls(id)
        if not isinstance(value, Mapping):
            return record
        state = value.get("state")
        return replace(
            record,
            saga=_text(value.get("saga")) or "",
            bulk=value.get("bulk") is True,
            client=_text(value.get("client")) or "",
            total=_count(value.get("total")),
            started=_count(value.get("started")),
            existing=_count(value.get("existing")),
            refused=_count(value.get("refused")),
            refusals=_refusals(value.get("refusals")),
            ended=_ended(value.get("ended")),
            seconds=_seconds(value.get("seconds")),
            state=state if state in get_args(BatchState) else "STARTING",
            stopped=_text(value.get("stopped")),
            by=_text(value.get("by")),
        )

    def opened(self, value: Any) -> Self:
        """The record once another command starts the rows. A pause or a cancel stays."""
        new = type(self).from_json(self.id, value)
        return replace(new, state=self.state, by=self.by, stopped=None)

    def reported(self, value: Any) -> Self:
        """Return what the command that starts the rows has counted; reports of an earlier command change nothing."""
        new = type(self).from_json(self.id, value)
        if new.client != self.client:
            return self
        return replace(
            self,
            total=new.total,
            started=new.started,
            existing=new.existing,
            refused=new.refused,
            refusals=new.refusals,
            ended=new.ended,
            seconds=new.seconds,
            stopped=new.stopped,
        )

    def closed(self) -> Self:
        """The command has ended: all rows are started, or it says why not."""
        if self.state == "CANCELLED":
            return self
        return replace(self, state="STARTED" if self.processed >= self.total else "STOPPED")

    def asked(self, state: BatchState, by: Any) -> Self:
        """Somebody has paused, resumed or cancelled it; what is cancelled stays so."""
        return self if self.state == "CANCELLED" else replace(self, state=state, by=_text(by))


def is_from(value: Any, record: BatchRecord) -> bool:
    """Return whether a report is one of the command that starts the rows."""
    return isinstance(value, Mapping) and value.get("client") == record.client


def _text(value: Any) -> str | None:
    return encodable(value[:MAX_TEXT]) if isinstance(value, str) else None


def _refusals(value: Any) -> tuple[str, ...]:
    written = value[:MAX_REFUSALS] if isinstance(value, list | tuple) else ()
    return tuple(encodable(text[:MAX_REFUSAL]) for text in written if isinstance(text, str))


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= MAX_COUNT else 0


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float, Decimal) and 0 <= value <= MAX_COUNT else 0.0


def _ended(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        return {}
    return {state: _count(count) for state, count in value.items() if isinstance(state, str) and state in _STATES}
