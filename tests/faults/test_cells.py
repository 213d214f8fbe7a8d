"""The fault matrix against real processes: one test for each fault × position."""

from __future__ import annotations

import pytest

from tests.faults.bulk_matrix import BULK_ROWS
from tests.faults.cell_runner import CellRunner
from tests.faults.cells import Cell, cells
from tests.faults.feature_matrix import FEATURE_ROWS
from tests.faults.matrix import ROWS

EVERY_POSITION = ("02", "03")
"""Rows where the position matters most: a worker is killed around the commit."""

MET_ELSEWHERE = ("broker-cut", "broker-killed", "commit-late", "message-overtaken", "poison-command")
"""Rows with Kafka that tests/integration/messaging visits, too: each costs a relay and seconds of waiting."""

BULK = (
    "03-bulk-worker-killed-after-effect-B",
    "06-bulk-participant-refuses-B",
    "08-bulk-worker-killed-in-workflow-task-C",
)
"""Of the cells of bulk execution those that show most."""


def marks(cell: Cell) -> list[pytest.MarkDecorator]:
    """`make test` has a cell of each row, and more of those where the position matters most.

    It leaves out all cells after the pivot, where only retries remain, of rows without Kafka, and the rows of the
    relay, whose crash points tests/integration/messaging/relay visits one by one. The cells of another row with Kafka
    cost little more than one of them.
    """
    row, position = cell.row, cell.position
    if row.bulk:
        left_out = cell.id not in BULK
    elif row.kafka is not None:
        left_out = "relay" in cell.id or row.fault in MET_ELSEWHERE
    elif row.number in EVERY_POSITION:
        left_out = position == "A"
    else:
        left_out = position != next(one for one in row.expected if one != "A" or len(row.expected) == 1)
    return [pytest.mark.slow] if row.slow or left_out else []


@pytest.mark.usefixtures("cells_ahead")
@pytest.mark.parametrize(
    "cell", [pytest.param(cell, id=cell.id, marks=marks(cell)) for cell in cells(ROWS + FEATURE_ROWS + BULK_ROWS)]
)
async def test_cell(cell: Cell, cell_runner: CellRunner) -> None:
    violations = (await cell_runner.result(cell)).violations
    assert not violations, "\n".join(violations)
