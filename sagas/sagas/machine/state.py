"""What a running saga knows about itself: small mutable records, and their JSON.

Nothing here decides anything. A record becomes JSON by leaving out what still has its default, so that the state of
a saga with thousands of finished items stays small.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from sagas.outcomes import OutcomeKind

StepState = Literal[
    "PENDING",
    "RUNNING",
    "DONE",
    "REJECTED",
    "FAILED",
    "UNKNOWN",
    "SKIPPED",
    "COMPENSATING",
    "COMPENSATED",
    "NOTHING_TO_UNDO",
    "CONFIRMING",
    "CONFIRMED",
    "PARKED",
]
SagaState = Literal["RUNNING", "COMMITTED", "COMPENSATING", "PARKED", "COMPLETED", "COMPENSATED", "RESIDUE"]
Phase = Literal["forward", "committed", "backward"]
OpState = Literal["PENDING", "RUNNING", "DONE", "NOTHING_TO_UNDO", "REJECTED", "FAILED", "UNKNOWN", "PARKED", "SKIPPED"]
EntryOp = Literal["do", "undo", "confirm"]
FlightKind = Literal["call", "timer", "wait", "saga"]
Ask = Literal["do", "probe", "seal", "write", "undo", "undo-mark", "confirm", "confirm-mark"]
"""What a flight asks for. ``write`` puts a person's `done` into the guard."""

Purpose = Literal["", "retry", "end", "continue", "not_done", "pivot", "backward", "skip", "again", "compensate"]
"""Why an UNKNOWN step is being resolved, which decides how it goes on afterwards."""


@dataclass(slots=True)
class Operation:
    """The compensation or the confirm of an entry. ``attempts`` None: unknown; ``made`` counts at least that many.

    ``marked``: the guard where the step ran has decided, the action itself lives elsewhere. ``tries_from``: the
    attempts that a person's retry does not count any more.
    """

    state: OpState = "PENDING"
    attempts: int | None = 0
    made: int = 0
    tries_from: int = 0
    alternate: int = 0
    started_at: float | None = None
    error: dict[str, Any] | None = None
    ended_at: float | None = None
    arguments: dict[str, Any] | None = None
    override: dict[str, Any] | None = None
    marked: bool = False
    use_confirmed: bool = False
    result: Any = None


@dataclass(slots=True)
class Entry:
    """One row of the ledger: a step, or one item of a for_each.

    ``made`` counts the attempts of this generation at the least, ``attempts`` all of them (None: unknown).
    ``resolved``: nothing of the forward action is there, and nothing will be. ``asked``: a probe had its say going
    backward. ``tries_from``, ``tries_since``: what a person's retry does not count any more. ``uncounted``: how many
    attempts in a row have ended without counting. ``continued``: its failure is treated as if it had not run.
    ``decision``: what a person decided, until it is carried out.
    """

    id: str
    step: str
    index: int | None = None
    generation: int = 1
    state: StepState = "PENDING"
    outcome: OutcomeKind | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    word: str | None = None
    attempts: int | None = 0
    made: int = 0
    rounds: int = 0
    tries_from: int = 0
    tries_since: float | None = None
    uncounted: int = 0
    arguments: dict[str, Any] | None = None
    override: dict[str, Any] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    last_end: float | None = None
    resolved: bool = False
    asked: bool = False
    continued: bool = False
    flight: str | None = None
    decision: dict[str, Any] | None = None
    undo: Operation | None = None
    confirm: Operation | None = None


@dataclass(slots=True)
class Flight:
    """Something asked of the world that has not answered yet.

    ``background``: it goes on, but nobody needs to wait for it (probing a parked pivot).
    """

    id: str
    kind: FlightKind
    entry: str
    ask: Ask
    since: float
    purpose: Purpose = ""
    fires_at: float | None = None
    summary: str = ""
    background: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class StepRecord:
    """Where one step stands: its entries, and the counters that keep every event cheap."""

    id: str
    needs_open: int = 0
    items: list[Any] | None = None
    entries: list[Entry] = field(default_factory=list)
    running: int = 0
    closed: int = 0
    stopped: bool = False
    settled: bool = False
    begun: bool = False
    skipped: bool = False
    results: list[Any] | None = None
    dependants_open: int = 0
    undo_cursor: int | None = None
    undo_closed: bool = False
    confirm_open: int = 0
    confirm_cursor: int = 0
    confirms_running: int = 0
    confirm_closed: bool = False


@dataclass(slots=True)
class Parked:
    """An operation only a person can move on."""

    step: str
    op: EntryOp
    since: float
    why: str


def pack(record: Any) -> dict[str, Any]:
    """A record as JSON, without the fields that still have their default."""
    data: dict[str, Any] = {}
    for item in fields(record):
        value = getattr(record, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if default is MISSING or value != default or type(value) is not type(default):
            data[item.name] = _packed(value)
    return data


def _packed(value: Any) -> Any:
    if isinstance(value, Operation):
        return pack(value)
    if isinstance(value, list) and value and isinstance(value[0], Entry):
        return [pack(entry) for entry in value]
    return value


def unpack_entry(data: dict[str, Any]) -> Entry:
    entry = Entry(**data)
    if data.get("undo") is not None:
        entry.undo = Operation(**data["undo"])
    if data.get("confirm") is not None:
        entry.confirm = Operation(**data["confirm"])
    return entry


def unpack_step(data: dict[str, Any]) -> StepRecord:
    record = StepRecord(**{**data, "entries": []})
    record.entries = [unpack_entry(entry) for entry in data.get("entries", ())]
    return record
