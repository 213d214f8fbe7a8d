"""The fault matrix against real processes: one test for each fault × position."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.bulk_matrix import BULK_ROWS
from tests.faults.cell_runner import CellRunner
from tests.faults.cells import Cell, cells
from tests.faults.feature_matrix import FEATURE_ROWS
from tests.faults.matrix import ROWS

TESTS = Path(__file__).parents[1]
ALL_ROWS = ROWS + FEATURE_ROWS + BULK_ROWS

POSITIONS = {
    "worker-killed-before-commit": "P",
    "worker-killed-after-effect": "PC",
    "bulk-worker-killed-after-effect": "B",
    "bulk-worker-killed-in-workflow-task": "C",
}
"""Where `make test` has these rows; the others where they begin."""

MET_ELSEWHERE = {
    "participant-refuses": "integration/engine/test_language.py",
    "compensation-keeps-failing": "integration/engine/test_corrected_undos.py",
    "compensation-given-up": "integration/engine/test_skipped_automatic_undos.py",
    "database-errors": "integration/guard/test_statement_errors.py",
    "poison-refused-at-registration": "unit/engine/definition/checks/test_diagnostics.py",
    "unknown-saga": "integration/engine/test_limits.py",
    "expression-fails": "unit/engine/machine_properties/test_properties.py",
    "arguments-too-large": "integration/engine/test_limits.py",
    "result-too-large": "integration/engine/test_limits.py",
    "cancelled": "integration/engine/test_cancel.py",
    "cancelled-before-first-task": "integration/engine/test_cancel.py",
    "cancelled-natively": "integration/engine/test_cancel.py",
    "branch-refuses": "unit/engine/machine_properties/test_properties.py",
    "order-across-the-join": "unit/engine/machine_properties/test_properties.py",
    "notification-target-down": "integration/notify/test_notifications.py",
    "no-session-free": "integration/guard/test_guard_limits.py",
    "code-decides-otherwise": "replay/test_replay.py",
    "terminated": "integration/engine/test_lifecycle.py",
    "deployed-anew": "integration/engine/test_lifecycle.py",
    "nested-saga-past-its-pivot": "integration/engine/nested/test_child_past_commit_point.py",
    "cancelled-and-pivot-refused": "integration/engine/test_cancel.py",
    "started-again": "integration/cli/test_start_and_show.py",
    "nested-saga-refused": "integration/engine/nested/test_nested_sagas.py",
}
"""Rows in which no process is killed, frozen or cut off, and where else under tests `make test` has what they show."""


def marks(cell: Cell) -> list[pytest.MarkDecorator]:
    """`make test` has each kill, each frozen process and each lost connection once, and a second one at the commit.

    It leaves out the rows with Kafka: the crash points of relays and consumers are visited one by one by
    tests/integration/messaging.
    """
    row = cell.row
    first = next(position for position in row.expected if position != "A" or len(row.expected) == 1)
    left_out = cell.position not in POSITIONS.get(row.fault, "" if row.bulk else first)
    left_out = left_out or row.kafka is not None or row.fault in MET_ELSEWHERE
    return [pytest.mark.slow] if row.slow or left_out else []


def test_rows_that_are_met_elsewhere_exist_and_are_met() -> None:
    assert MET_ELSEWHERE.keys() | POSITIONS.keys() <= {row.fault for row in ALL_ROWS}
    assert [path for path in MET_ELSEWHERE.values() if not (TESTS / path).exists()] == []


@pytest.mark.usefixtures("cells_ahead")
@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.id, marks=marks(cell)) for cell in cells(ALL_ROWS)])
async def test_cell(cell: Cell, cell_runner: CellRunner) -> None:
    violations = (await cell_runner.result(cell)).violations
    assert not violations, "\n".join(violations)
