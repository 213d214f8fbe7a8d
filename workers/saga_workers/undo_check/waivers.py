"""`undo_leaves` of a definition: the tables and columns that its undos need not restore."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from saga_workers.undo_check.table_rows import Difference


def apply_waivers(difference: Difference, waivers: Iterable[str]) -> tuple[Difference, bool, set[str]]:
    """Return the difference without waived columns, whether all of it is waived, and the waivers that were needed.

    A waived difference keeps its columns. A waiver is a table or a column of one, with or without its schema.
    """
    names = {difference.table, difference.table.rpartition(".")[2]}
    given = set(waivers)
    if used := given & names:
        return difference, True, used
    columns = {
        column: waiver for column in difference.columns for name in names if (waiver := f"{name}.{column}") in given
    }
    if not columns:
        return difference, False, set()
    remaining = tuple(column for column in difference.columns if column not in columns)
    if not remaining:
        return difference, True, set(columns.values())
    return replace(difference, columns=remaining), False, set(columns.values())
