"""The columns to which a statement assigns the values of others. Pure."""

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
    r"""[\w`")]\s*=\s*[(`"a-z_]|\binsert\b.*\bselect\b"""
    r"""|\binsert\b.*\bvalues?\b\s*\(.*(?<![\w:'"])(?!null\b|default\b)[`a-z_]""",
    re.I | re.S,
)


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """``target`` gets the value of ``source``. Their parameters have no meaning."""

    source: AssignedParameter
    target: AssignedParameter


@lru_cache(maxsize=1024)
def column_pairs(statement: ParsedSql) -> tuple[ColumnPair, ...]:
    """The pairs of plain columns, also of those behind derived tables and functions such as `coalesce`."""
    if _MAY_HAVE.search(statement.source) is None:
        return ()
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
        for node in tree.find_all(exp.EQ, exp.Insert):
            if isinstance(node, exp.Insert):
                yield from self._of_insert(node)
            elif node.arg_key == "expressions" and isinstance(node.parent, exp.Update | exp.OnConflict):
                for target in self._columns(node.this):
                    yield from self._assigned(target, node.expression)

    def _of_insert(self, node: Any) -> Iterator[ColumnPair]:
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

    def _assigned(self, target: AssignedParameter, value: Any) -> Iterator[ColumnPair]:
        for column in self._columns(value):
            yield ColumnPair(column, target)

    def _columns(self, node: Any) -> Sequence[AssignedParameter]:
        return self._kinds.combined([node]).columns
