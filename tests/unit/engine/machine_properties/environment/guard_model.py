"""The guard of a participant database, as the contract describes it: rows for do, undo and confirm with reasons.

Every method is one transaction. The action inside it may make its effect (return a result) or raise
:class:`RolledBack`; then nothing at all of the transaction stays, the rows neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Failure, Marker, Outcome

WRITE = "saga.done"
"""The action without effect: an operator has made the effect, and only the row is written."""

SKIP = "saga.skip"
"""The action without effect: an operator has skipped an automatic compensation, and no row is written."""

CLOSE = "saga.close"
"""An operator has decided about the undo of a nested saga, whose row images are closed; it has no other effect."""

DECISIONS = (WRITE, SKIP, CLOSE)

RowOp = Literal["do", "undo", "confirm", "own_undo", "own_confirm"]


class RolledBack(Exception):
    """The action did not happen; ``outcome`` is what the attempt answers."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.kind)
        self.outcome = outcome


@dataclass(slots=True)
class Row:
    """One guard row: who inserted it (``reason``), the arguments, and the stored answer."""

    reason: Literal["do", "undo", "confirm"]
    arguments: str = ""
    result: Any = None
    marker: Marker | None = None


Action = Callable[[str], Any]
"""Makes the effect of the named action and returns its result, or raises RolledBack."""

LATE = Outcome("late", failure=Failure("AlreadyCompensated", "already undone or sealed"), attempt=1, retryable=False)


@dataclass
class Database:
    """The guard table of one connection."""

    name: str
    rows: dict[tuple[str, int, RowOp], Row] = field(default_factory=dict)

    def run(self, call: Call, action: Action) -> Outcome:
        """Carry out one guarded call in one transaction."""
        assert call.guard is not None
        before = dict(self.rows)
        try:
            if call.op == "seal":
                return self._seal(call)
            if call.action == SKIP:
                undo = self.row(call, "undo")
                return Outcome.done(marker="skipped") if undo is None else Outcome.done(marker=undo.marker)
            if call.guard.mode == "own":
                return self._own(call, action)
            if call.op == "do":
                return self._do(call, action)
            if call.op == "undo":
                return self._undo(call, action)
            if call.op == "confirm":
                return self._confirm(call, action)
            raise AssertionError(f"a guarded call with op {call.op}")
        except RolledBack as rolled:
            self.rows = before
            return rolled.outcome

    def row(self, call: Call, op: RowOp) -> Row | None:
        return self.rows.get((call.entry, call.generation, op))

    def decided(self, entry: str, generation: int) -> bool:
        """True once no attempt of this generation can make an effect any more, or its effect was undone."""
        do = self.rows.get((entry, generation, "do"))
        return (do is not None and do.reason == "undo") or (entry, generation, "undo") in self.rows

    def _insert(
        self,
        call: Call,
        op: RowOp,
        reason: Literal["do", "undo", "confirm"],
        result: Any = None,
        marker: Marker | None = None,
    ) -> None:
        key = (call.entry, call.generation, op)
        assert key not in self.rows
        self.rows[key] = Row(reason, _hash(call), result, marker)

    def _do(self, call: Call, action: Action) -> Outcome:
        row = self.row(call, "do")
        if row is None:
            result = action(call.action)
            self._insert(call, "do", "do", result)
            return Outcome.done(result)
        if row.reason == "undo" or self.row(call, "undo") is not None:
            return LATE
        if row.arguments != _hash(call) and call.action != WRITE:
            why = "key used with other arguments"
            return Outcome("failed", failure=Failure("KeyReused", why), attempt=1, retryable=False, park_reason=why)
        return Outcome.done(row.result)

    def _sealing(self, call: Call) -> bool:
        """Insert the `do` row with reason `undo`; True when the step is sealed, now or earlier."""
        row = self.row(call, "do")
        if row is None:
            self._insert(call, "do", "undo")
            self._insert(call, "confirm", "undo")
            self._insert(call, "undo", "undo", None, "nothing_to_undo")
            return True
        return row.reason == "undo"

    def _seal(self, call: Call) -> Outcome:
        if self._sealing(call):
            return Outcome.done(marker="sealed")
        row, undo = self.row(call, "do"), self.row(call, "undo")
        assert row is not None
        if undo is not None and undo.marker is None:
            return LATE
        return Outcome.done(row.result, marker=None if undo is None else undo.marker)

    def _undo(self, call: Call, action: Action) -> Outcome:
        assert call.guard is not None
        if call.guard.known_done and self.row(call, "do") is None:
            why = "the guard has no row of this effect"
            failure = Failure("UnknownEffect", why)
            return Outcome(
                "failed", failure=failure, attempt=1, marker="unknown_effect", retryable=False, park_reason=why
            )
        if self._sealing(call):
            return Outcome.done(marker="nothing_to_undo")
        stored = self.row(call, "undo")
        if stored is not None:
            return Outcome.done(stored.result, marker=stored.marker)
        chosen: str | None = call.action
        if self.row(call, "confirm") is None:
            self._insert(call, "confirm", "undo")
            if call.guard.mode == "mark":
                self._insert(call, "undo", "undo", None, "elsewhere")
                return Outcome.done(marker="elsewhere")
        elif call.guard.confirmed == "elsewhere":
            self._insert(call, "undo", "undo", None, "confirmed")
            return Outcome.done(marker="confirmed")
        else:
            chosen = call.guard.confirmed[0] if call.guard.confirmed else None
        if chosen is None:
            why = "the step is confirmed"
            failure = Failure("Confirmed", why)
            return Outcome("failed", failure=failure, attempt=1, marker="confirmed", retryable=False, park_reason=why)
        result = action(chosen)
        self._insert(call, "undo", "undo", result)
        return Outcome.done(result)

    def _confirm(self, call: Call, action: Action) -> Outcome:
        assert call.guard is not None
        do = self.row(call, "do")
        if do is None or do.reason != "do" or self.row(call, "undo") is not None:
            return LATE
        stored = self.row(call, "confirm")
        if stored is not None:
            return LATE if stored.reason == "undo" else Outcome.done(stored.result, marker=stored.marker)
        marked = call.guard.mode == "mark"
        result = None if marked else action(call.action)
        self._insert(call, "confirm", "confirm", result, "elsewhere" if marked else None)
        return Outcome.done(result, marker="elsewhere" if marked else None)

    def _own(self, call: Call, action: Action) -> Outcome:
        assert call.op in ("undo", "confirm")
        own: RowOp = "own_undo" if call.op == "undo" else "own_confirm"
        stored = self.row(call, own)
        if stored is not None:
            return Outcome.done(stored.result)
        result = action(call.action)
        self._insert(call, own, call.op, result)
        return Outcome.done(result)


def _hash(call: Call) -> str:
    return json.dumps(call.arguments, sort_keys=True, default=str)
