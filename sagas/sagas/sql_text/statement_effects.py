"""The columns that one SQL statement reads, sets and adds to, as far as isolation between sagas depends on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

StatementKind = Literal["read", "insert", "update", "other"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """``column = …`` of an update. ``adds``: it adds to the column or subtracts from it something without a column.

    ``parameters`` are those of the value; ``reads``: the value is computed from columns of the row.
    """

    column: str
    adds: bool
    reads: bool
    parameters: frozenset[str]


@dataclass(frozen=True, slots=True)
class StatementEffect:
    """A statement about one table. Names are in lower case.

    ``columns`` are those that a read returns, ``*`` for all. ``compared`` are the parameters that WHERE compares with a
    column for equality, by that column. ``overwrites``: an insert may update an existing row.
    """

    kind: StatementKind
    table: str
    columns: frozenset[str] = frozenset()
    assignments: tuple[Assignment, ...] = ()
    compared: Mapping[str, str] = field(default_factory=dict)
    overwrites: bool = False

    @property
    def commutes(self) -> bool:
        """True if it has the same result before and after any statement of this kind."""
        match self.kind:
            case "read":
                return True
            case "insert":
                return not self.overwrites
            case "update":
                return all(assignment.adds for assignment in self.assignments)
        return False


@lru_cache(maxsize=512)
def statement_effect(statement: str) -> StatementEffect | None:
    """Return what ``statement`` does; None if it cannot be analysed, or names more than one table."""
    # Takes half a second, which only definitions pay whose statements matter for isolation.
    from sqlglot import exp, parse
    from sqlglot.errors import SqlglotError

    try:
        trees = [tree for tree in parse(statement) if tree is not None]
    except SqlglotError:
        return None
    if len(trees) != 1:
        return None
    tree: Any = trees[0]
    tables = {table.name.lower() for table in tree.find_all(exp.Table)}
    if len(tables) != 1:
        return None
    table = tables.pop()
    compared = _compared(tree.args.get("where"), exp)
    match tree:
        case exp.Select():
            names = {
                column.name.lower() for expression in tree.expressions for column in expression.find_all(exp.Column)
            }
            star = {"*"} if any(selected.find(exp.Star) for selected in tree.expressions) else set()
            return StatementEffect("read", table, frozenset(names | star), compared=compared)
        case exp.Insert():
            conflict = tree.args.get("conflict")
            updates = bool(conflict is not None and conflict.expressions) or bool(tree.args.get("overwrite"))
            return StatementEffect("insert", table, overwrites=updates)
        case exp.Update():
            assignments = tuple(
                _assignment(expression, exp) for expression in tree.expressions if isinstance(expression, exp.EQ)
            )
            complete = len(assignments) == len(tree.expressions) and all(
                assignment.column for assignment in assignments
            )
            return StatementEffect("update", table, assignments=assignments, compared=compared) if complete else None
    return StatementEffect("other", table, compared=compared)


def _assignment(node: Any, exp: Any) -> Assignment:
    column, value = node.this.name.lower(), node.expression.unnest()
    parameters = frozenset(placeholder.name for placeholder in value.find_all(exp.Placeholder))
    reads = value.find(exp.Column) is not None
    return Assignment(column, _adds(column, value, exp), reads, parameters)


def _adds(column: str, value: Any, exp: Any) -> bool:
    if not isinstance(value, exp.Add | exp.Sub):
        return False
    left, right = value.this, value.expression
    if _is_column(left, column, exp):
        return right.find(exp.Column) is None
    return isinstance(value, exp.Add) and _is_column(right, column, exp) and left.find(exp.Column) is None


def _is_column(node: Any, column: str, exp: Any) -> bool:
    node = node.unnest()
    if isinstance(node, exp.Coalesce):  # coalesce(x, 0) + :n
        node = node.this
    return isinstance(node, exp.Column) and node.name.lower() == column


def _compared(where: Any, exp: Any) -> dict[str, str]:
    """Column by parameter, for the comparisons that all rows satisfy."""
    columns: dict[str, str] = {}
    for comparison in where.this.flatten() if where is not None and isinstance(where.this, exp.And) else _only(where):
        comparison = comparison.unnest()
        if isinstance(comparison, exp.EQ):
            for column, value in ((comparison.this, comparison.expression), (comparison.expression, comparison.this)):
                if isinstance(column, exp.Column) and isinstance(value, exp.Placeholder):
                    columns[value.name] = column.name.lower()
    return columns


def _only(where: Any) -> list[Any]:
    return [] if where is None else [where.this]
