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
    r"""[\w`")]\s*(?:[<>!]?=|[<>]|<=?>)\s*[(`"a-z_]|\binsert\b.*\bselect\b|\bin\s*\(\s*select|\busing\s*\("""
    r"""|\binsert\b.*\bvalues?\b\s*\(.*(?<![\w:'"])(?!null\b|default\b)[`a-z_]""",
    re.I | re.S,
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
            exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.In, exp.Insert, exp.Join
        ):
            match node:
                case exp.Join():
                    yield from self._of_join(node)
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

    def _of_join(self, join: Any) -> Iterator[ColumnPair]:
        """The columns of `using`, which are those of this name on both sides."""
        exp, query = self._exp, join.parent
        joined = query.args.get("joins") or []
        from_ = query.args.get("from_")
        first = [query] if isinstance(query, exp.Table) else [from_.this] if from_ is not None else []
        lefts = [*first, *(other.this for other in joined[: joined.index(join)])]
        for name in join.args.get("using") or ():
            right, *others = (self._column(name.name, relation.alias_or_name, join) for relation in (join.this, *lefts))
            for other in others:
                yield from self._of(other, [right])

    def _column(self, name: str, owner: str, within: Any) -> Any:
        column = self._exp.column(name, table=owner)
        column.parent = within
        return column

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
