"""Which parameters of a SQL statement reach which columns, so that no number is rounded on its way into one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sagas.sql_text.row_changes import SQLGLOT_DIALECTS

_WRITES = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(insert|update|with|merge|replace)\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class AssignedParameter:
    """A parameter whose value becomes the value of a column, or a summand of it.

    ``table`` is its name as SQL, ``schema`` and ``name`` are its parts without quotes. ``column`` is a name, or the
    position (from 0) in an insert that names no columns. ``alone``: the value of the column is the parameter itself.
    """

    parameter: str
    table: str
    schema: str | None
    name: str
    column: str | int
    alone: bool


@lru_cache(maxsize=1024)
def assigned_parameters(statement: str, dialect: str) -> tuple[AssignedParameter, ...]:
    """The parameters that an insert, update or merge writes into columns; ``dialect`` is SQLAlchemy's name of it.

    A parameter in a product, a cast with a precision or a function is not among them: the author computes with it.
    Nothing is returned for a statement that the parser does not understand.
    """
    first = _WRITES.match(statement)
    if first is None:
        return ()
    # Takes half a second, which only statements pay that write numbers with a fraction, or very large ones.
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    if first[1].lower() == "replace":
        statement = statement[: first.start(1)] + "insert" + statement[first.end(1) :]
    try:
        trees = [tree for tree in sqlglot.parse(statement, dialect=SQLGLOT_DIALECTS[dialect]) if tree is not None]
    except SqlglotError:
        return ()
    analysis = _Analysis(SQLGLOT_DIALECTS[dialect], exp)
    return tuple(assigned for tree in trees for assigned in analysis.of(tree))


class _Analysis:
    def __init__(self, dialect: str, exp: Any) -> None:
        self._dialect = dialect
        self._exp = exp

    def of(self, tree: Any) -> Iterator[AssignedParameter]:
        exp = self._exp
        for node in tree.find_all(exp.Insert, exp.Update, exp.Merge):
            match node:
                case exp.Merge():
                    yield from self._merge(node)
                case exp.Insert() if not isinstance(node.parent, exp.When):
                    yield from self._insert(node)
                case exp.Update() if not isinstance(node.parent, exp.When):
                    tables = {table.alias_or_name.lower(): table for table in self._tables(node)}
                    yield from self._assignments(node.expressions, node.this, tables)

    def _tables(self, update: Any) -> Iterable[Any]:
        joins = update.this.args.get("joins") or ()
        return [update.this, *(join.this for join in joins if isinstance(join.this, self._exp.Table))]

    def _insert(self, node: Any) -> Iterator[AssignedParameter]:
        exp, target = self._exp, node.this
        columns: Sequence[str] | None = None
        if isinstance(target, exp.Schema):
            target, columns = target.this, [column.name for column in target.expressions]
        for row in self._rows(node.expression):
            yield from self._row(target, columns, row)
        conflict = node.args.get("conflict")
        if conflict is not None:
            yield from self._assignments(conflict.expressions, target, {})

    def _rows(self, source: Any) -> Iterator[Sequence[Any]]:
        exp = self._exp
        match source:
            case exp.Values():
                yield from (row.expressions if isinstance(row, exp.Tuple) else [row] for row in source.expressions)
            case exp.Select():
                yield source.expressions
            case exp.SetOperation():
                yield from self._rows(source.this)
                yield from self._rows(source.expression)
            case exp.Subquery():
                yield from self._rows(source.this)

    def _merge(self, node: Any) -> Iterator[AssignedParameter]:
        exp = self._exp
        for when in node.args["whens"].expressions:
            then = when.args.get("then")
            if isinstance(then, exp.Update):
                yield from self._assignments(then.expressions, node.this, {})
            elif isinstance(then, exp.Insert) and then.expression is not None:
                named = isinstance(then.this, exp.Tuple)
                columns = [column.name for column in then.this.expressions] if named else None
                yield from self._row(node.this, columns, then.expression.expressions)

    def _row(self, table: Any, columns: Sequence[str] | None, values: Sequence[Any]) -> Iterator[AssignedParameter]:
        for position, value in enumerate(values):
            if columns is None or position < len(columns):
                yield from self._flows(table, position if columns is None else columns[position], value)

    def _assignments(self, nodes: Iterable[Any], table: Any, tables: dict[str, Any]) -> Iterator[AssignedParameter]:
        exp = self._exp
        for node in nodes:
            if not isinstance(node, exp.EQ):
                continue
            columns, values = [node.this], [node.expression]
            if isinstance(node.this, exp.Tuple) and isinstance(node.expression, exp.Tuple):
                columns, values = node.this.expressions, node.expression.expressions
            for column, value in zip(columns, values, strict=False):
                if isinstance(column, exp.Column):
                    yield from self._flows(tables.get(column.table.lower(), table), column.name, value)

    def _flows(self, table: Any, column: str | int, value: Any) -> Iterator[AssignedParameter]:
        exp = self._exp
        if not isinstance(table, exp.Table):
            return
        schema = table.db or None
        name = exp.Table(this=table.this, db=table.args.get("db"), catalog=table.args.get("catalog"))
        for parameter, alone in self._parameters(value, alone=True):
            yield AssignedParameter(parameter, name.sql(dialect=self._dialect), schema, table.name, column, alone)

    def _sources(self, column: Any) -> Iterator[Any]:
        """The expressions behind a column of a derived table, a common table expression or the source of a MERGE."""
        exp, node = self._exp, column
        relations: list[Any] = []
        common: dict[str, Any] = {}
        while node is not None:
            if with_ := node.args.get("with_"):
                common = {table.alias.lower(): table for table in with_.expressions} | common
            if isinstance(node, exp.Select | exp.Update | exp.Merge):
                from_ = node.args.get("from_")
                joined = [join.this for join in node.args.get("joins") or ()]
                relations += [*([from_.this] if from_ else ()), *joined, node.args.get("using")]
            node = node.parent
        for relation in relations:
            if relation is None:
                continue
            if column.table and relation.alias_or_name.lower() != column.table.lower():
                continue
            yield from self._outputs(relation, common, column.name.lower())

    def _outputs(self, relation: Any, common: dict[str, Any], name: str) -> Iterator[Any]:
        exp, names = self._exp, [column.name.lower() for column in self._alias_columns(relation)]
        body = relation
        if isinstance(relation, exp.Table):
            body = common.get(relation.name.lower())
            if body is None:
                return
            names = names or [column.name.lower() for column in self._alias_columns(body)]
            body = body.this
        if isinstance(body, exp.Unnest):
            yield from body.expressions if name in names else ()
            return
        for row in self._rows(body):
            labels = names or [value.alias_or_name.lower() for value in row]
            yield from (value for label, value in zip(labels, row, strict=False) if label == name)

    def _alias_columns(self, relation: Any) -> Sequence[Any]:
        alias = relation.args.get("alias")
        return alias.columns if isinstance(alias, self._exp.TableAlias) else ()

    def _parameters(
        self, node: Any, *, alone: bool, visited: frozenset[int] = frozenset()
    ) -> Iterator[tuple[str, bool]]:
        """The parameters that reach the value of ``node`` without a change of their digits after the point."""
        exp = self._exp
        if id(node) in visited:
            return
        visited |= {id(node)}
        parts: Iterable[Any] = ()
        match node:
            case exp.Placeholder():
                yield node.name, alone
            case exp.Paren() | exp.Alias() | exp.Neg() | exp.Abs() | exp.Nullif():
                parts = [node.this]
            case exp.Array() | exp.Unnest():
                parts = node.expressions
            case exp.Column() if node.find_ancestor(exp.Select, exp.Update, exp.Merge) is not None:
                parts = self._sources(node)
            case exp.Subquery() | exp.Select():
                parts = [row[0] for row in self._rows(node) if row]
            case exp.Cast() if node.to.is_type("decimal") and not node.to.expressions:
                parts = [node.this]
            case exp.Add() | exp.Sub():
                parts, alone = [node.this, node.expression], False
            case exp.Coalesce() | exp.Greatest() | exp.Least():
                parts = [node.this, *node.expressions]
            case exp.Case():
                parts = [*(branch.args["true"] for branch in node.args["ifs"]), node.args.get("default")]
            case exp.If():
                parts = [node.args["true"], node.args.get("false")]
        for part in parts:
            if part is not None:
                yield from self._parameters(part, alone=alone, visited=visited)
