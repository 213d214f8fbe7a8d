"""The table at the end of a run: pattern, how its sagas ended, what was killed, and the invariant."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.patterns.player import Row

RECORD = "pattern"
"""The property of a test's report that has the row as JSON: xdist brings it to the process that prints."""

_HEAD = ("pattern", "success", "failure", "killed", "and then", "invariant")


def to_record(row: Row) -> str:
    return json.dumps(asdict(row))


def row_of(report: Any) -> tuple[str, ...] | None:
    """The row of a test that played a pattern."""
    node = str(getattr(report, "nodeid", ""))
    if "tests/patterns/test_patterns.py::test_pattern[" not in node:
        return None
    for name, value in getattr(report, "user_properties", ()):
        if name == RECORD:
            row = json.loads(value)
            return (row["pattern"], row["success"], row["failure"], row["killed"], row["after_kill"], row["invariant"])
    name = node.partition("[")[2].rstrip("]")
    return None if report.outcome == "skipped" else (name, "FAILED", "see above", "", "", "")


def table(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    lines = [_HEAD, *sorted(rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    passed = sum(row[1] != "FAILED" for row in rows)
    yield f"{passed} of {len(rows)} patterns as they must be"
