"""The assignments of a statement of MySQL or MariaDB: of other columns, and of what it computes of parameters. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sagas.sql_text.parameters.assigned_parameters import MOVES_TIME, AssignedParameter
from sagas.sql_text.parameters.operand_kinds import OperandKinds, is_moved_time
from sagas.sql_text.parameters.scopes import Scopes
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.syntax_trees import SQLGLOT_DIALECTS
from sagas.sql_text.written_tables import plain_trees

_MAY_HAVE = re.compile(
    r"""[\w`")]\s*=\s*[(`"a-z_@]|\binsert\b.*\bselect\b"""
    r"""|\binsert\b.*\bvalues?\b\s*\(.*(?<![\w:'"])(?!null\b|default\b)[`a-z_]""",
    re.I | re.S,
)

_WITH_EFFECT = (
    "values",
    "get_lock",
    "release_lock",
    "release_all_locks",
    "setval",
    "last_insert_id",
    "sleep",
    "benchmark",
)
"""Functions with an effect, or with a value that only the statement has."""


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """``target`` gets the value of ``source``. Their parameters have no meaning."""

    source: AssignedParameter
    target: AssignedParameter


@dataclass(frozen=True, slots=True)
class ComputedValue:
    """``target`` gets what ``expression`` makes of parameters; ``typed`` has its type, with NULL in their place.

    ``is_alone``: its value needs no row, and may be asked for before the statement runs.
    """

    target: AssignedParameter
    expression: str
    typed: str
    is_alone: bool


@lru_cache(maxsize=1024)
def assigned_values(statement: ParsedSql) -> tuple[ColumnPair | ComputedValue, ...]:
    """The assignments of columns and computed values, also behind derived tables and functions such as `coalesce`."""
    if _MAY_HAVE.search(statement.source) is None:
        return ()
    from sqlglot import exp  # takes half a second

    pairs = _Pairs(OperandKinds(SQLGLOT_DIALECTS[statement.dialect], exp), exp)
    return tuple(dict.fromkeys(pair for tree in plain_trees(statement) for pair in pairs.of(tree)))


class _Pairs:
    def __init__(self, kinds: OperandKinds, exp: Any) -> None:
        self._kinds, self._exp = kinds, exp
        self._scopes = Scopes(exp)

    def of(self, tree: Any) -> Iterator[ColumnPair | ComputedValue]:
        exp = self._exp
        for node in tree.find_all(exp.EQ, exp.Insert):
            if isinstance(node, exp.Insert):
                yield from self._of_insert(node)
            elif node.arg_key == "expressions" and isinstance(node.parent, exp.Update | exp.OnConflict):
                for target in self._targets(node):
                    yield from self._assigned(target, node.expression)

    def _of_insert(self, node: Any) -> Iterator[ColumnPair | ComputedValue]:
        exp, target = self._exp, node.this
        names: Sequence[str] | None = None
        if isinstance(target, exp.Schema):
            target, names = target.this, [column.name for column in target.expressions]
        if not isinstance(target, exp.Table) or node.expression is None:
            return
        table = exp.Table(this=target.this, db=target.args.get("db")).sql(dialect="mysql")
        for row in self._kinds.relations.rows(node.expression):
            for at, value in enumerate(row):
                if self._kinds.relations.is_star(value):
                    break  # the places behind it are not seen
                if names is None or at < len(names):
                    place = at if names is None else names[at]
                    column = AssignedParameter("", table, target.db or None, target.name, place, alone=True)
                    yield from self._assigned(column, value)

    def _targets(self, assignment: Any) -> Sequence[AssignedParameter]:
        """The column of an assignment; in an update of several tables any with its name."""
        exp, column, update = self._exp, assignment.this, assignment.parent
        if (
            (columns := self._columns(column))
            or not isinstance(update, exp.Update)
            or not isinstance(column, exp.Column)
        ):
            return columns
        tables = [update.this, *(join.this for join in update.this.args.get("joins") or ())]
        return [
            target
            for table in tables
            if isinstance(table, exp.Table)
            and (target := self._kinds.column(self._scopes.column(column.name, table.alias_or_name, update), ""))
        ]

    def _assigned(self, target: AssignedParameter, value: Any) -> Iterator[ColumnPair | ComputedValue]:
        for column in self._columns(value):
            yield ColumnPair(column, target)
        for part in self._kinds.parts(value):
            is_hidden = (
                isinstance(part, self._exp.Column) and value.find(self._exp.Placeholder) and self._is_alone(value)
            )
            if not is_hidden and (not self._has_parameter(part, frozenset()) or self._is_arithmetic(part)):
                continue
            whole = part if self._is_alone(part) else value
            is_alone = self._is_alone(whole)
            if is_alone or not self._moves_time(part):
                expression = (whole if is_alone else part).sql(dialect=SQLGLOT_DIALECTS["mariadb"])
                yield ComputedValue(target, expression, self._scopes.typed(part), is_alone)

    def _has_parameter(self, node: Any, visited: frozenset[int]) -> bool:
        """Return whether a parameter takes part in a value, also through a column of a derived table."""
        exp = self._exp
        if id(node) in visited or node is None:
            return False
        return any(
            isinstance(part, exp.Placeholder)
            or any(
                self._has_parameter(source, visited | {id(node), id(part)})
                for source in self._kinds.relations.sources(part)
            )
            for part in node.find_all(exp.Placeholder, exp.Column)
        )

    def _is_arithmetic(self, node: Any) -> bool:
        exp = self._exp
        is_sum = isinstance(node, exp.Add | exp.Sub) and not is_moved_time(node, exp)
        return is_sum or isinstance(node, exp.Mul | exp.Div | exp.IntDiv | exp.Mod | exp.Neg)

    def _moves_time(self, node: Any) -> bool:
        """Return whether a time keeps its parts, which are compared with the column as the parameter has them."""
        exp = self._exp
        is_move = isinstance(node, exp.Anonymous) and node.name.lower() in MOVES_TIME
        return is_move or is_moved_time(node, exp) or isinstance(node, exp.DateAdd | exp.DateSub | exp.TimestampAdd)

    def _is_alone(self, node: Any) -> bool:
        """Return whether an expression needs no row, and may be evaluated once more without an effect."""
        exp = self._exp
        for part in node.walk():
            if isinstance(part, exp.Parameter | exp.SessionParameter | exp.NextValueFor | exp.Dot):
                return False
            if isinstance(part, exp.Table) and isinstance(part.this, exp.Identifier):
                return False
            if isinstance(part, exp.Anonymous) and part.name.lower() in _WITH_EFFECT:
                return False
            query = part.find_ancestor(exp.Select) if isinstance(part, exp.Column) else None
            if isinstance(part, exp.Column) and (query is None or not _is_within(query, node)):
                return False
        return True

    def _columns(self, node: Any) -> Sequence[AssignedParameter]:
        return self._kinds.combined([node]).columns


def _is_within(node: Any, outer: Any) -> bool:
    while node is not None and node is not outer:
        node = node.parent
    return node is outer
