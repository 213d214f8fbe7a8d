"""The columns that a statement compares with each other, or assigns to each other. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.sql_text.parameters.operand_kinds import OperandKinds
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.syntax_trees import SQLGLOT_DIALECTS, parse_trees
from sagas.sql_text.written_tables import plain_statement

_MAY_HAVE = re.compile(
    r"""[\w`")]\s*(?:[<>!]?=|[<>]|<=?>)\s*[(`"a-z_]|\binsert\b.*\bselect\b|\bin\s*\(\s*select""", re.I | re.S
)


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """``other`` is compared with ``first``, or gets its value if ``is_assigned``. Their parameters have no meaning."""

    first: AssignedParameter
    other: AssignedParameter
    is_assigned: bool


def may_pair_columns(statement: ParsedSql) -> bool:
    """Return whether the text of a statement may have such columns, without the analysis."""
    return _MAY_HAVE.search(statement.source) is not None


@lru_cache(maxsize=1024)
def column_pairs(statement: ParsedSql) -> tuple[ColumnPair, ...]:
    """The pairs of plain columns, also of those behind derived tables and functions such as `coalesce`."""
    from sqlglot import exp  # takes half a second
    from sqlglot.errors import SqlglotError

    try:
        trees = parse_trees(plain_statement(statement), statement.dialect)
    except SqlglotError:
        return ()
    pairs = _Pairs(OperandKinds(SQLGLOT_DIALECTS[statement.dialect], exp), exp)
    return tuple(dict.fromkeys(pair for tree in trees for pair in pairs.of(tree)))


class _Pairs:
    def __init__(self, kinds: OperandKinds, exp: Any) -> None:
        self._kinds, self._exp = kinds, exp

    def of(self, tree: Any) -> Iterator[ColumnPair]:
        exp = self._exp
        for node in tree.find_all(
            exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.In, exp.Insert
        ):
            match node:
                case exp.Insert():
                    yield from self._of_insert(node)
                case exp.In():
                    others = [*node.expressions, node.args.get("query")]
                    yield from self._of(node.this, [other for other in others if other is not None])
                case exp.EQ() if node.arg_key == "expressions" and isinstance(node.parent, exp.Update | exp.OnConflict):
                    for target in self._columns(node.this):
                        yield from self._assigned(target, node.expression)
                case _:
                    yield from self._of(node.this, [node.expression])

    def _of_insert(self, node: Any) -> Iterator[ColumnPair]:
        exp, target = self._exp, node.this
        names: Sequence[str] = []
        if isinstance(target, exp.Schema):
            target, names = target.this, [column.name for column in target.expressions]
        if not isinstance(target, exp.Table) or node.expression is None:
            return
        table = exp.Table(this=target.this, db=target.args.get("db")).sql(dialect="mysql")
        for row in self._kinds.relations.rows(node.expression):
            for at, value in enumerate(row):
                if names and at < len(names):
                    column = AssignedParameter("", table, target.db or None, target.name, names[at], alone=True)
                    yield from self._assigned(column, value)

    def _assigned(self, target: AssignedParameter, value: Any) -> Iterator[ColumnPair]:
        for column in self._columns(value):
            yield ColumnPair(column, target, is_assigned=True)

    def _of(self, node: Any, others: Sequence[Any]) -> Iterator[ColumnPair]:
        for first in self._columns(node):
            for other in others:
                for column in self._columns(other):
                    yield ColumnPair(first, column, is_assigned=False)

    def _columns(self, node: Any) -> Sequence[AssignedParameter]:
        return self._kinds.combined([node]).columns
