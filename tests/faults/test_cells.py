"""The fault matrix against real processes: one test for each fault × position."""

from __future__ import annotations

import pytest

from tests.faults.cell_runner import CellRunner
from tests.faults.cells import Cell, cells
from tests.faults.matrix import ROWS


def marks(cell: Cell) -> list[pytest.MarkDecorator]:
    """`make test` leaves out the cells after the pivot, where only retries remain, of rows without Kafka; and those of
    the relay, whose crash points tests/integration/messaging/relay visits one by one."""
    after_pivot = cell.position == "A" and cell.row.kafka is None
    return [pytest.mark.slow] if cell.row.slow or after_pivot or "relay" in cell.id else []


@pytest.mark.usefixtures("cells_ahead")
@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.id, marks=marks(cell)) for cell in cells(ROWS)])
async def test_cell(cell: Cell, cell_runner: CellRunner) -> None:
    violations = (await cell_runner.result(cell)).violations
    assert not violations, "\n".join(violations)
