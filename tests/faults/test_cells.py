"""The fault matrix against real processes: one test for each fault × position."""

from __future__ import annotations

import pytest

from tests.faults.cells import Cell, cells
from tests.faults.matrix import ROWS
from tests.faults.theatre import Theatre


@pytest.mark.parametrize("cell", cells(ROWS), ids=lambda cell: cell.id)
async def test_cell(cell: Cell, theatre: Theatre) -> None:
    violations = (await theatre.judgement(cell)).violations
    assert not violations, "\n".join(violations)
