"""The expressions that a statement of MySQL or MariaDB compares with each other, with a query for their types. Pure.

The server itself says which type an expression has: a list of functions would never be complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sagas.sql_text.parameters.relations import Relations
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.syntax_trees import SQLGLOT_DIALECTS, parse_trees
from sagas.sql_text.written_tables import plain_statement

_LITERAL = r"(?::\w+|[\d.]+|'[^']*')"
_MAY_COMPARE = re.compile(
    rf"""[\w`")]\s*(?:[<>!]?=|[<>]|<=?>)\s*[-+~(`"a-z_]|\bin\s*\((?!\s*(?:{_LITERAL}\s*,\s*)*{_LITERAL}\s*\))"""
    r"""|\busing\s*\(|\bnatural\b|\bbetween\b|\bcase\s+(?!when\b)|\bnullif\s*\(""",
    re.I,
)
"""Not each condition with a parameter or a literal: the analysis takes longer than such a statement."""


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
    from sqlglot.errors import SqlglotError

    try:
        trees = parse_trees(plain_statement(statement), statement.dialect)
    except SqlglotError:
        return ()
    sides = _Sides(exp)
    return tuple(dict.fromkeys(pair for tree in trees for pair in sides.of(tree)))


_DIALECT = SQLGLOT_DIALECTS["mariadb"]


class _Sides:
    def __init__(self, exp: Any) -> None:
        self._exp = exp
        self._relations = Relations(exp)

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
        return ComparedSides((_text(first), _text(other)), (self._in_scope(first), self._in_scope(other)))

    def _of_join(self, join: Any) -> Iterator[ComparedSides]:
        """The columns of `using` and of a natural join, which have one name on both sides."""
        exp, query = self._exp, join.parent
        joined = query.args.get("joins") or []
        from_ = query.args.get("from_")
        first = [query] if isinstance(query, exp.Table) else [from_.this] if from_ is not None else []
        lefts = [*first, *(other.this for other in joined[: joined.index(join)])]
        for name in join.args.get("using") or ():
            right, *others = (self._column(name.name, relation.alias_or_name, join) for relation in (join.this, *lefts))
            for other in others:
                yield self._pair(other, right)
        if join.method.upper() == "NATURAL":
            right, *others = (self._column("*", relation.alias_or_name, join) for relation in (join.this, *lefts))
            for other in others:
                yield ComparedSides(natural=(self._all_of(other), self._all_of(right)))

    def _all_of(self, star: Any) -> str:
        before, after = next(self._levels(star))
        return f"{before}{_text(star)}{after}"

    def _column(self, name: str, owner: str, within: Any) -> Any:
        exp = self._exp
        column = exp.Column(this=exp.Star(), table=exp.to_identifier(owner)) if name == "*" else exp.column(name, owner)
        column.parent = within
        return column

    def _in_scope(self, node: Any) -> str:
        """An expression as a subquery without rows, in a query for each one around it, so that its names are seen."""
        having = node.find_ancestor(self._exp.Having, self._exp.Query)
        outputs = having.parent.expressions if isinstance(having, self._exp.Having) else ()
        text = self._plain(node, {output.alias.lower(): output.this for output in outputs if output.alias})
        for before, after in self._levels(node):
            text = f"({before}{text}{after})"
        return text

    def _levels(self, node: Any) -> Iterator[tuple[str, str]]:
        """The queries around an expression, the innermost first: the text before it and behind it."""
        exp, child, parent = self._exp, node, node.parent
        while parent is not None:
            relations = list[str]()
            if isinstance(parent, exp.Select | exp.Update | exp.Delete):
                relations = [*self._relations_of(parent)]
            elif isinstance(parent, exp.Insert) and isinstance(child, exp.OnConflict):
                target = parent.this.this if isinstance(parent.this, exp.Schema) else parent.this
                relations = [self._plain(target)]
            with_ = parent.args.get("with_")
            if relations or with_ is not None:
                common = f"{self._plain(with_)} " if with_ is not None else ""
                yield f"{common}select ", f"{' from ' if relations else ''}{''.join(relations)} where false"
            child, parent = parent, parent.parent

    def _relations_of(self, node: Any) -> Iterator[str]:
        exp = self._exp
        if isinstance(node, exp.Select):
            from_ = node.args.get("from_")
            if from_ is None:
                return
            yield self._plain(from_.this)
            yield from (f" {self._plain(join)}" for join in node.args.get("joins") or ())
        elif using := node.args.get("using"):
            yield ", ".join(self._plain(relation) for relation in using)
        else:
            yield self._plain(node.this)
            yield from (f" {self._plain(join)}" for join in node.args.get("joins") or ())

    def _plain(self, node: Any, outputs: Mapping[str, Any] | None = None) -> str:
        """The text without parameters: NULL has no type of its own. ``outputs`` have names, which HAVING may use."""
        exp = self._exp

        def without(part: Any) -> Any:
            if isinstance(part, exp.Column) and not part.table and part.name.lower() in (outputs or {}):
                return exp.Paren(this=(outputs or {})[part.name.lower()].copy())
            if not isinstance(part, exp.Placeholder):
                return part
            return exp.Literal.number(1) if isinstance(part.parent, exp.Limit | exp.Offset) else exp.Null()

        return node.copy().transform(without).sql(dialect=_DIALECT)


def _text(node: Any) -> str:
    return node.sql(dialect=_DIALECT)
