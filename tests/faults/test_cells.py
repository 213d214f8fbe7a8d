"""The fault matrix against real processes: one test for each fault × position."""

from __future__ import annotations

import pytest

from tests.faults.cell_runner import CellRunner
from tests.faults.cells import Cell, cells
from tests.faults.matrix import ROWS

AT_THE_PIVOT = ("03", "05", "24")
"""Rows where the pivot differs from a step before it: its outcome is unknown, or a cancel meets it."""

SERVERS = ("09", "11", "12")
"""Rows where a server or its network fails: an undo waits for it as any step does."""

MET_ELSEWHERE = ("broker-cut", "commit-late")
"""Rows with Kafka that tests/integration/messaging visits, too: each costs a relay and seconds of waiting."""


def marks(cell: Cell) -> list[pytest.MarkDecorator]:
    """`make test` has at least one cell of each row: that before the pivot, and one of an undo.

    It leaves out those after the pivot, where only retries remain, of rows without Kafka; those at the pivot where it
    differs in nothing; and the rows of the relay, whose crash points tests/integration/messaging/relay visits.
    """
    row, position = cell.row, cell.position
    if row.kafka is not None:
        left_out = "relay" in cell.id or row.fault in MET_ELSEWHERE
    else:
        same_at_the_pivot = position == "P" and row.number not in AT_THE_PIVOT and "B" in row.expected
        left_out = position == "A" or same_at_the_pivot or (position == "C" and row.number in SERVERS)
    return [pytest.mark.slow] if row.slow or left_out else []


@pytest.mark.usefixtures("cells_ahead")
@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.id, marks=marks(cell)) for cell in cells(ROWS)])
async def test_cell(cell: Cell, cell_runner: CellRunner) -> None:
    violations = (await cell_runner.result(cell)).violations
    assert not violations, "\n".join(violations)
