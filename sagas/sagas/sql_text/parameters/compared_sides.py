"""The expressions that a statement of MySQL or MariaDB compares with each other, with a query for their types. Pure.

The server itself says which type an expression has: a list of functions would never be complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sagas.sql_text.parameters.relations import Relations
from sagas.sql_text.parameters.scopes import Scopes
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.syntax_trees import SQLGLOT_DIALECTS
from sagas.sql_text.written_tables import plain_trees

_LITERAL = r"(?::\w+|[\d.]+|'[^']*')"
_MAY_COMPARE = re.compile(
    rf"""[\w`")]\s*(?:[<>!]?=|[<>]|<=?>)\s*[-+~(`"a-z_]|\bin\s*\((?!\s*(?:{_LITERAL}\s*,\s*)*{_LITERAL}\s*\))"""
    r"""|\busing\s*\(|\bnatural\b|\bbetween\b|\bcase\s+(?!when\b)|\bnullif\s*\(""",
    re.I,
)
"""A text that may compare two columns. Comparisons with parameters and literals do not count: the analysis takes longer
than such a statement.
"""


@dataclass(frozen=True, slots=True)
class ComparedSides:
    """Two expressions that are compared, both with columns, as ``names`` for messages and as SQL that has their types.

    ``natural`` has the queries of all columns of both sides of a natural join, of which those of one name are compared.
    """

    names: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    natural: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def compared_sides(statement: ParsedSql) -> tuple[ComparedSides, ...]:
    """The comparisons of a statement whose sides both have columns."""
    if _MAY_COMPARE.search(statement.source) is None:
        return ()
    from sqlglot import exp  # takes half a second

    sides = _Sides(exp)
    return tuple(dict.fromkeys(pair for tree in plain_trees(statement) for pair in sides.of(tree)))


class _Sides:
    def __init__(self, exp: Any) -> None:
        self._exp = exp
        self._relations = Relations(exp)
        self._scopes = Scopes(exp)

    def of(self, tree: Any) -> Iterator[ComparedSides]:
        exp = self._exp
        comparisons = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
        for node in tree.find_all(*comparisons, exp.In, exp.Between, exp.Case, exp.Nullif, exp.Join):
            match node:
                case exp.EQ() if node.arg_key == "expressions" and isinstance(node.parent, exp.Update | exp.OnConflict):
                    continue
                case exp.Join():
                    yield from self._of_join(node)
                    continue
                case exp.In():
                    others = [*node.expressions, node.args.get("query")]
                case exp.Between():
                    others = [node.args["low"], node.args["high"]]
                case exp.Case():
                    others = [branch.this for branch in node.args["ifs"]] if node.this is not None else []
                case _:
                    others = [node.expression]
            for other in others:
                yield from self._pairs(node.this, other)

    def _pairs(self, first: Any, other: Any) -> Iterator[ComparedSides]:
        for row in self._rows(first):
            for other_row in self._rows(other):
                for value, other_value in zip(row, other_row, strict=False):
                    if self._has_column(value) and self._has_column(other_value):
                        yield self._pair(value, other_value)

    def _rows(self, node: Any) -> Sequence[Sequence[Any]]:
        """The values of each row that an operand stands for."""
        exp = self._exp
        while isinstance(node, exp.Paren | exp.Any | exp.All) or (
            isinstance(node, exp.Subquery) and isinstance(node.this, exp.Subquery)
        ):
            node = node.this
        if isinstance(node, exp.Tuple):
            return [node.expressions]
        if isinstance(node, exp.Subquery | exp.Query):
            return [*self._relations.rows(node)]
        return [] if node is None else [[node]]

    def _has_column(self, node: Any) -> bool:
        return not self._relations.is_star(node) and node.find(self._exp.Column) is not None

    def _pair(self, first: Any, other: Any) -> ComparedSides:
        return ComparedSides((_text(first), _text(other)), (self._scopes.typed(first), self._scopes.typed(other)))

    def _of_join(self, join: Any) -> Iterator[ComparedSides]:
        """The columns of `using` and of a natural join, which have one name on both sides."""
        exp, query = self._exp, join.parent
        joined = query.args.get("joins") or []
        from_ = query.args.get("from_")
        first = [query] if isinstance(query, exp.Table) else [from_.this] if from_ is not None else []
        lefts = [*first, *(other.this for other in joined[: joined.index(join)])]
        for name in join.args.get("using") or ():
            right, *others = (
                self._scopes.column(name.name, relation.alias_or_name, join) for relation in (join.this, *lefts)
            )
            for other in others:
                yield self._pair(other, right)
        if join.method.upper() == "NATURAL":
            right, *others = (
                self._scopes.column("*", relation.alias_or_name, join) for relation in (join.this, *lefts)
            )
            for other in others:
                yield ComparedSides(natural=(self._all_of(other), self._all_of(right)))

    def _all_of(self, star: Any) -> str:
        before, after = next(self._scopes.levels(star))
        return f"{before}{_text(star)}{after}"


def _text(node: Any) -> str:
    return node.sql(dialect=SQLGLOT_DIALECTS["mariadb"])
