"""The parameters by whose values a statement finds the rows that it locks. Pure.

Transactions that lock rows in the order of these values do not deadlock with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.written_tables import plain_trees


@lru_cache(maxsize=512)
def lock_parameters(statement: ParsedSql) -> tuple[str, ...]:
    """The parameters that columns must equal, then those of inserted rows, first of the columns that may conflict.

    Empty, if the parser does not understand the statement or if it finds its rows in another way.
    """
    from sqlglot import exp  # takes half a second

    trees = plain_trees(statement)
    return tuple(dict.fromkeys(name for tree in trees for name in (*_equalled(tree, exp), *_inserted(tree, exp))))


def _equalled(tree: Any, exp: Any) -> Iterator[str]:
    for comparison in tree.find_all(exp.EQ, exp.NullSafeEQ, exp.In):
        if not comparison.find_ancestor(exp.Where, exp.Join) or not comparison.find(exp.Column):
            continue
        yield from (placeholder.name for placeholder in comparison.find_all(exp.Placeholder))


def _conflicting(conflict: Any, columns: list[str], exp: Any) -> set[str]:
    """The columns by which a row is found that is there: MySQL does not name them, but they are not assigned."""
    if keys := conflict.args.get("conflict_keys"):
        return {key.name for key in keys}
    return {*columns} - {change.this.name for change in conflict.expressions if isinstance(change, exp.EQ)}


def _inserted(tree: Any, exp: Any) -> Iterator[str]:
    for insert in tree.find_all(exp.Insert):
        columns = [column.name for column in insert.this.expressions] if isinstance(insert.this, exp.Schema) else []
        conflict = insert.args.get("conflict")
        keys = set(columns) if conflict is None else _conflicting(conflict, columns, exp)
        rows = insert.expression.expressions if isinstance(insert.expression, exp.Values) else ()
        for row in rows:
            values = list(row.expressions) if isinstance(row, exp.Tuple) else [row]
            named = [*zip(columns, values, strict=False)] if columns else [("", value) for value in values]
            for _, value in sorted(named, key=lambda each: each[0] not in keys):
                yield from (placeholder.name for placeholder in value.find_all(exp.Placeholder))
