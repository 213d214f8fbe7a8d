"""The guard of a database with prepared transactions, and with images and row locks of automatic compensations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sagas.builtins.automatic import RESTORE
from sagas.definition.model import StepDefinition
from sagas.protocol.messages import Call
from sagas.protocol.outcomes import ROW_LOCKED, Failure, Outcome
from tests.unit.engine.machine_properties.environment.guard_model import LATE, WRITE, Action, Database, RolledBack, Row

Key = tuple[str, int]
"""An entry and its generation."""


@dataclass
class SqlDatabase(Database):
    """``step`` gives the step of an entry, ``chance`` whether an attempt dies between its two transactions.

    ``prepared``, ``committed``: the prepared transactions that are open, and those that an attempt has committed or an
    operator has recorded as done; ``visible``: those that a confirm has made visible. ``table``: rows that automatic
    compensations restore, by name; ``images``: a row's value before and after an entry.
    ``ours``, ``others``: the rows that this saga and another one have locked. ``changed``: rows that somebody without
    a lock has changed after this saga.
    """

    step: Callable[[str], StepDefinition] = lambda entry: NotImplemented
    chance: Callable[[int], bool] = lambda percent: False
    row_of: Mapping[str, str] = field(default_factory=dict)
    prepared: set[Key] = field(default_factory=set)
    committed: set[Key] = field(default_factory=set)
    visible: set[Key] = field(default_factory=set)
    table: dict[str, str] = field(default_factory=dict)
    images: dict[Key, tuple[str, str]] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)

    def run(self, call: Call, action: Action) -> Outcome:
        assert call.guard is not None
        if call.guard.two_phase:
            return self._prepared_run(call, action)
        if self.step(call.entry).do.two_phase:
            return super().run(call, lambda name: None)  # not that guard: it changes nothing that is prepared
        if self.step(call.entry).do.images and call.op in ("do", "undo"):
            return super().run(call, lambda name: self._with_images(call, action, name))
        return super().run(call, action)

    # --- two-phase commit ---------------------------------------------------------------------------------------

    def _prepared_run(self, call: Call, action: Action) -> Outcome:
        run = {"do": self._prepare, "undo": self._roll_back, "confirm": self._commit, "seal": self._seal_prepared}
        try:
            return run[call.op](call, action)
        except RolledBack as rolled:
            return rolled.outcome

    def _prepare(self, call: Call, action: Action) -> Outcome:
        key, row = (call.entry, call.generation), self.row(call, "do")
        if row is None:
            self._insert(call, "do", "do")  # committed before the transaction to prepare: it stays after a refusal
        elif row.reason == "undo":
            return LATE
        row = self.rows[(*key, "do")]
        if key in self.prepared | self.committed:
            return Outcome.done(row.result)
        result = action(call.action)
        self.rows[(*key, "do")] = replace(row, result=result)
        (self.committed if call.action == WRITE else self.prepared).add(key)
        return Outcome.done(result)

    def _roll_back(self, call: Call, action: Action) -> Outcome:
        assert call.guard is not None
        key, stored, manual = (call.entry, call.generation), self.row(call, "undo"), call.action == WRITE
        if stored is not None:
            return Outcome.done(stored.result, marker=stored.marker)
        if not manual and key in self.committed:
            return _parked("Confirmed", "the step is confirmed", "confirmed")
        if not manual and call.guard.known_done and self.row(call, "do") is None:
            return _parked("UnknownEffect", "the guard has no row of this effect", "unknown_effect")
        prepared = key in self.prepared
        if prepared and not manual:
            action(call.action)
        self.prepared.discard(key)
        nothing = not manual and not prepared and not call.guard.known_done
        self._refuse(call, "nothing_to_undo" if nothing else None)
        return Outcome.done(marker="nothing_to_undo" if nothing else None)

    def _refuse(self, call: Call, marker: Literal["nothing_to_undo"] | None) -> None:
        for op in ("do", "confirm", "undo"):
            self.rows[(call.entry, call.generation, op)] = Row("undo", marker=marker)

    def _commit(self, call: Call, action: Action) -> Outcome:
        key, row = (call.entry, call.generation), self.row(call, "do")
        if row is None or row.reason == "undo":
            return LATE
        if self.row(call, "confirm") is not None:
            return Outcome.done()
        if key not in self.prepared | self.committed and call.action != WRITE:
            return _parked("PreparedTransactionLost", "the prepared transaction was rolled back outside the saga")
        if key not in self.visible:
            if call.action != WRITE:
                action(call.action)
            self.prepared.discard(key)
            self.committed.add(key)
            self.visible.add(key)
            if self.chance(20):  # COMMIT PREPARED was carried out, and the attempt dies before the row of `confirm`
                raise RolledBack(Outcome("unknown", failure=Failure("Timeout", "no answer in time"), attempt=None))
        self._insert(call, "confirm", "confirm")
        return Outcome.done()

    def _seal_prepared(self, call: Call, action: Action) -> Outcome:
        key, undone, row = (call.entry, call.generation), self.row(call, "undo"), self.row(call, "do")
        if undone is not None:
            return Outcome.done(marker="sealed") if undone.marker == "nothing_to_undo" else LATE
        if row is not None and key in self.prepared | self.committed:
            return Outcome.done(row.result)
        self._refuse(call, "nothing_to_undo")
        return Outcome.done(marker="sealed")

    # --- automatic compensation ---------------------------------------------------------------------------------

    def _with_images(self, call: Call, action: Action, name: str) -> Any:
        key, row = (call.entry, call.generation), self.row_name(call.entry)
        if name == WRITE:
            self.images.pop(key, None)
            return action(name)
        if call.op == "do":
            if row in self.others:
                failure = Failure(ROW_LOCKED, f"the row {row} is locked by the saga other", {"owner": "other"})
                raise RolledBack(Outcome("failed", failure=failure, attempt=1, infrastructure=True, counted=False))
            result, before = action(name), self.table.get(row, "")
            self.ours.add(row)
            self.table[row] = f"{call.entry}@{call.generation}"
            self.images[key] = (before, self.table[row])
            return result
        assert name == RESTORE
        if key not in self.images:
            raise RolledBack(_parked("Parked", "the images of the changed rows are missing"))
        if row in self.others:
            failure = Failure("Infrastructure", f"the row {row} is locked by the saga other")
            raise RolledBack(Outcome("failed", failure=failure, attempt=1, infrastructure=True))
        before, after = self.images[key]
        if self.table[row] not in (before, after):
            raise RolledBack(_parked("Parked", f"the row {row} has changed since"))
        result = action(name)
        self.ours.add(row)
        self.table[row] = before
        del self.images[key]
        return result

    def row_name(self, entry: str) -> str:
        """The row that an entry changes; each item of a `for_each` has its own."""
        step, mark, item = entry.partition("#")
        return self.row_of[step] + mark + item


def _parked(type: str, why: str, marker: Literal["confirmed", "unknown_effect"] | None = None) -> Outcome:
    failure = Failure(type, why)
    return Outcome("failed", failure=failure, attempt=1, marker=marker, retryable=False, park_reason=why)
