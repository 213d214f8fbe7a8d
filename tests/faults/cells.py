"""The table of the fault matrix: fault × position → how it must end. One line here is one row of the matrix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment, Server
from tests.faults.evidence.checker import TRANSFER, Expected, Shape

Position = Literal["B", "P", "A", "C"]
RunFault = Callable[[CellEnvironment], Awaitable[None]]

TARGETS: Mapping[Position, Target] = {
    "B": Target("hold", "do"),
    "P": Target("capture", "do"),
    "A": Target("ship", "do"),
    "C": Target("hold", "undo"),
}
"""What the fault hits: a compensatable step, the pivot, a step after it, or a compensation."""

PREVIOUS: Mapping[Target, Target] = {
    TARGETS["B"]: Target("debit", "do"),
    TARGETS["P"]: Target("order", "do"),
    TARGETS["A"]: Target("capture", "do"),
    TARGETS["C"]: Target("order", "undo"),
}
"""The operation right before the one that is hit."""

ALL_THREE = ("order", "hold", "debit")
COMPLETED = Expected("COMPLETED")
REFUSED = Expected("COMPENSATED", "rejected", "capture", undone=ALL_THREE)
FORWARD: Mapping[Position, Expected] = {"B": COMPLETED, "P": COMPLETED, "A": COMPLETED, "C": REFUSED}
"""An infrastructure fault changes nothing: forward execution completes, and so does compensation."""


@dataclass(frozen=True)
class Row:
    """``run_fault`` starts the saga, injects the fault, and repairs what it broke.

    ``split``: workflows and effects in two worker processes; the first is shared with other cells unless
    ``kills_workflow_worker``. ``own``: servers started for this cell, because it kills them. ``proxied``: servers its
    workers reach through a fault proxy. ``checked`` is False where no saga is started.

    ``kafka``: effects are events too, and the row's cells run together on one relay; ``own`` is a broker that the
    row may kill, ``shared`` one behind a proxy that distinguishes the rows. ``client`` are properties of its relay's
    client; with ``consumes`` a consumer records the events, with ``sends_commands`` sagas send commands. ``slow`` rows
    are for `make test-long`.

    ``bulk``: the saga shares a bulk workflow with others, which end as ``others`` says, or else as it does.
    """

    number: str
    fault: str
    run_fault: RunFault
    expected: Mapping[Position, Expected]
    split: bool = True
    kills_workflow_worker: bool = False
    own: frozenset[Server] = frozenset()
    proxied: frozenset[Server] = frozenset()
    checked: bool = True
    attempts: int = 8
    pool: int | None = None
    edit: Mapping[str, str] = field(default_factory=dict)
    shape: Shape = TRANSFER
    saga: str = "transfer"
    targets: Mapping[Position, Target] = field(default_factory=lambda: TARGETS)
    kafka: Literal["shared", "own"] | None = None
    client: Mapping[str, str] = field(default_factory=dict)
    consumes: bool = False
    sends_commands: bool = False
    slow: bool = False
    bulk: bool = False
    others: Mapping[Position, Expected] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One test."""

    row: Row
    position: Position

    @property
    def id(self) -> str:
        return f"{self.row.number}-{self.row.fault}-{self.position}"

    @property
    def expected(self) -> Expected:
        return self.row.expected[self.position]

    @property
    def target(self) -> Target:
        return self.row.targets[self.position]


def cells(rows: tuple[Row, ...]) -> list[Cell]:
    return [Cell(row, position) for row in rows for position in row.expected]
