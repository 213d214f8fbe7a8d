"""The result of `saga verify-undo`: what each order of undos has left, and what was not verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saga_workers.undo_check.real_participants import UndoAction
from saga_workers.undo_check.table_rows import Difference

VERIFIED, DIFFERS, NOT_VERIFIED = "verified", "differs", "not verified"


@dataclass(frozen=True, slots=True)
class LeftRow:
    """A difference in the database of ``connection``. ``waived``: `undo_leaves` of the definition names it."""

    connection: str
    difference: Difference
    waived: bool

    @property
    def place(self) -> tuple[str, str, str, tuple[str, ...]]:
        """The place of the row: equal for all rows of a table in which the same is left."""
        return self.connection, self.difference.table, self.difference.kind, self.difference.columns

    def to_json(self) -> dict[str, Any]:
        row = self.difference
        return {
            "connection": self.connection,
            "table": row.table,
            "kind": row.kind,
            "key": None if row.key is None else dict(row.key),
            "columns": list(row.columns),
            "count": row.count,
            "waived": self.waived,
        }


@dataclass(frozen=True, slots=True)
class UndoneOrder:
    """One run: the fault at a step that has led backward, and the entries in the order in which they were undone.

    ``verified``: those whose effect and undo have both run on the databases, with the action of the undo. ``parked``:
    the operations that wait for an operator, because an undo has failed. ``simulated``: what the simulated run with
    the fault undoes; ``deviation``: how this run differs from it, as the end of a sentence.
    """

    step: str
    fault: str
    state: str
    undone: tuple[str, ...]
    verified: frozenset[tuple[str, UndoAction]]
    left: tuple[LeftRow, ...]
    parked: tuple[Mapping[str, Any], ...] = ()
    simulated: tuple[str, ...] = ()
    deviation: str | None = None

    @property
    def is_clean(self) -> bool:
        return self.deviation is None and not self.leaves_rows

    @property
    def leaves_rows(self) -> bool:
        """True also if an undo has failed."""
        return bool(self.parked) or not all(row.waived for row in self.left)

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "fault": self.fault,
            "state": self.state,
            "undone": list(self.undone),
            "differences": [row.to_json() for row in self.left],
            "parked": [{"step": row["step"], "op": row["op"], "why": row["why"]} for row in self.parked],
            "deviation": self.deviation,
        }


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """``result`` is one of the words above; ``why`` explains it, if the step was not verified.

    ``can_run`` is False for a step whose action, or undo, does not work in a database that can be copied.
    """

    step: str
    result: str
    why: str | None = None
    can_run: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "result": self.result, "why": self.why}


@dataclass(frozen=True, slots=True)
class HiddenTable:
    """A table, a sequence or the large objects of a database that cannot be compared, and why."""

    connection: str
    name: str
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"connection": self.connection, "table": self.name, "why": self.why}


@dataclass(frozen=True, slots=True)
class UndoReport:
    """``sequences`` have only moved on, which no rollback of a database undoes either. ``omitted``: orders that the
    limit has left out. ``unused_waivers``: entries of `undo_leaves` to which nothing corresponded. ``has_undo``: a step
    of the saga has a compensation. ``hidden``: what was not compared. ``other_copies``: databases that another run of
    the command has made and may have left.
    """

    saga: str
    input: Any
    input_source: str
    orders: tuple[UndoneOrder, ...]
    steps: tuple[StepVerdict, ...]
    omitted: int = 0
    sequences: tuple[str, ...] = ()
    unused_waivers: tuple[str, ...] = ()
    has_undo: bool = True
    hidden: tuple[HiddenTable, ...] = ()
    other_copies: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return any(not order.is_clean for order in self.orders)

    @property
    def verifies_nothing(self) -> bool:
        """True if no undo has run although some can."""
        can_run = any(step.can_run for step in self.steps)
        return can_run and all(step.result == NOT_VERIFIED for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        return {
            "saga": self.saga,
            "input": self.input,
            "steps": [step.to_json() for step in self.steps],
            "orders": [order.to_json() for order in self.orders],
            "omitted_orders": self.omitted,
            "sequences": list(self.sequences),
            "unused_waivers": list(self.unused_waivers),
            "not_compared": [table.to_json() for table in self.hidden],
            "other_copies": list(self.other_copies),
        }


def blamed_entries(orders: Sequence[UndoneOrder]) -> dict[tuple[Any, ...], frozenset[str]]:
    """For each place in which rows are left, the entries whose undo may have left them.

    Not to blame is an entry that was undone in an order that has left nothing in that place, and one without which
    another order has left the same.
    """
    places = dict.fromkeys(row.place for order in orders for row in order.left if not row.waived)
    return {place: _blamed(place, orders) for place in places}


def hidden_entries(orders: Sequence[UndoneOrder]) -> dict[str, frozenset[str]]:
    """The entries that are not to blame, but are undone only together with those that are: with these."""
    hidden: dict[str, frozenset[str]] = {}
    for place, blamed in blamed_entries(orders).items():
        suspects = frozenset[str]().union(*_suspects(place, orders))
        hidden |= dict.fromkeys(suspects - blamed, blamed)
    return hidden


def _blamed(place: tuple[Any, ...], orders: Iterable[UndoneOrder]) -> frozenset[str]:
    """The smallest groups of suspects: a larger one has one of these in it, which explains what is left."""
    groups = _suspects(place, orders)
    smallest = [group for group in groups if not any(other < group for other in groups)]
    return frozenset[str]().union(*smallest)


def _suspects(place: tuple[Any, ...], orders: Iterable[UndoneOrder]) -> list[frozenset[str]]:
    """For each order that has left rows in this place, the entries that may have left them."""
    groups: list[frozenset[str]] = []
    innocent: set[str] = set()
    for order in orders:
        if any(row.place == place and not row.waived for row in order.left):
            groups.append(frozenset(order.undone))
        else:
            innocent.update(order.undone)
    return [group - innocent for group in groups if group - innocent] or groups
