"""The problems of a report in words: rows that are left, and undos that have failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from saga_workers.undo_check.undo_report import LeftRow, UndoneOrder, UndoReport, blamed_entries
from sagas.text.printable import printable_line
from sagas.text.shortening import counted, shorten

_MAX_KEYS = 5
"""Rows that are named of one table; the others are counted."""

_MAX_TEXT = 60
"""Characters of a name or a value of the database."""


def problem_lines(report: UndoReport) -> Iterator[str]:
    """One line for each place in which rows are left, each operation that has failed, and each way of other runs."""
    for place, blamed in blamed_entries(report.orders).items():
        order = next(order for order in report.orders if any(row.place == place for row in order.left))
        rows = [row for row in order.left if row.place == place]
        undone = [entry for entry in order.undone if entry in blamed] or sorted(blamed)
        subject = f"the undo of {', '.join(undone)} leaves" if undone else "an undo of nothing leaves"
        yield f"{subject} {_describe(rows)} (after {order.step}: {order.fault})"
    failed = {}
    for order in report.orders:
        for row in order.parked:
            failed.setdefault(f"the {row['op']} of {row['step']} fails: {row['why']}", order)
    for line, order in failed.items():
        yield f"{line} (after {order.step}: {order.fault})"
    deviating: dict[str, list[UndoneOrder]] = {}
    for order in report.orders:
        if order.deviation is not None:
            deviating.setdefault(order.deviation, []).append(order)
    for deviation, orders in deviating.items():
        more = f" and {len(orders) - 1} more" if len(orders) > 1 else ""
        yield f"the order {orders[0].step}/{orders[0].fault}{more} {deviation}"


def _describe(rows: Sequence[LeftRow]) -> str:
    """The rows of one table in which the same is left."""
    row = rows[0].difference
    table = f"{rows[0].connection} · {_shown(row.table)}"
    if row.kind == "sequence":
        return f"the sequence {table} at an earlier value"
    keys = [
        ", ".join(f"{_shown(column)}={_shown(value)}" for column, value in each.difference.key.items())
        for each in rows[:_MAX_KEYS]
        if each.difference.key is not None
    ]
    count = sum(each.difference.count for each in rows)
    more = f" and {count - len(keys)} more" if keys and count > len(keys) else ""
    which = f" ({'; '.join(keys)}{more})" if keys else ""
    columns = f": {', '.join(map(_shown, row.columns))}" if row.columns else ""
    return f"{counted(count, f'{row.kind} row')} in {table}{which}{columns}"


def _shown(text: str) -> str:
    return shorten(printable_line(text), _MAX_TEXT)
