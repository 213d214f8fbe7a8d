"""The table at the end of a test run: fault × position → result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import get_args

from tests.faults.bulk_matrix import BULK_ROWS
from tests.faults.cells import Cell, Position, cells
from tests.faults.feature_matrix import FEATURE_ROWS
from tests.faults.matrix import ROWS as SINGLE_ROWS

ROWS = SINGLE_ROWS + FEATURE_ROWS + BULK_ROWS

_NODE = re.compile(r"tests/faults/test_cells\.py::test_cell\[(.+)\]$")
_WORDS = {
    "COMPLETED": "completed",
    "COMPENSATED": "undone",
    "PARKED": "parked",
    "RESIDUE": "residue",
    "TERMINATED": "found",
}
_HEAD = {"B": "before the pivot", "P": "the pivot", "A": "after the pivot", "C": "compensating"}
_WIDTH = 18


def cell_id(node: str) -> str | None:
    """The cell a test of the matrix belongs to."""
    match = _NODE.search(node.replace("\\", "/"))
    return match.group(1) if match else None


def table(results: Mapping[str, bool]) -> Iterable[str]:
    """Lines for cells that ran; ``results`` maps a cell's id to whether it passed."""
    by_id = {cell.id: cell for cell in cells(ROWS)}
    positions = get_args(Position)
    width = max(len(row.fault) for row in ROWS) + 5
    yield " " * width + "".join(_HEAD[position].ljust(_WIDTH) for position in positions).rstrip()
    for row in ROWS:
        texts = []
        for position in positions:
            cell = by_id.get(f"{row.number}-{row.fault}-{position}")
            texts.append(_result(cell, results) if cell is not None else "-")
        if any(text.startswith(("✔", "✘")) for text in texts):
            line = f"{row.number}  {row.fault.replace('-', ' ')}".ljust(width)
            yield (line + "".join(text.ljust(_WIDTH) for text in texts)).rstrip()
    passed = sum(results.values())
    yield f"{passed} of {len(results)} cells as they must be"


def _result(cell: Cell, results: Mapping[str, bool]) -> str:
    if cell.id not in results:
        return "not run"
    word = _WORDS[cell.expected.state] if cell.row.checked else "refused"
    return f"✔ {word}" if results[cell.id] else "✘ FAILED"
