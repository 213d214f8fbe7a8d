"""Finds the parameters of SQL that reach columns, so that no number is rounded on its way into one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sagas.sql_text.parameters.relations import Relations
from sagas.sql_text.parameters.written_values import WrittenValues
from sagas.sql_text.parsed import ParsedSql, parse_sql
from sagas.sql_text.syntax_trees import SQLGLOT_DIALECTS, parse_trees
from sagas.sql_text.written_tables import (
    PASSING_FUNCTIONS,
    plain_statement,
    unplaced_parameters,
    written_tables,
)

MOVES_TIME = ("addtime", "subtime", "adddate", "subdate")
"""Functions, which the parser does not know, that move a time and keep its parts."""

_WRITES = ("insert", "update", "with", "merge")


@dataclass(frozen=True, slots=True)
class StarColumn:
    """The column that gets the value of ``column`` of a table, of which a query takes all columns in their order.

    ``offset`` is the number of values before them, ``columns`` those of the insert, None: of its table. ``table``,
    ``schema`` and ``name`` are those of the table whose columns are taken.
    """

    table: str
    schema: str | None
    name: str
    column: str
    offset: int
    columns: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class AssignedParameter:
    """A parameter whose value becomes the value of a column, or a summand of it.

    ``table`` is its name as SQL, ``schema`` and ``name`` are its parts without quotes. ``column`` is a name, or the
    position (from 0) in an insert that names no columns; None: any of the table. ``alone``: the value of the column is
    the parameter itself; ``cast``: after a cast that keeps all of it; ``zoned``: to a time in UTC. ``certain`` False:
    it may reach this column, as the statement does not show which one it reaches. ``field`` is that of a composite
    column, by name or position. ``through`` is a function that may give it on to this column, ``via`` the column, in
    lower case, whose value the statement gives on to this one, as `excluded.x`. ``named``: ``column`` is the name or
    the position of a column of this table, or there is no such column.
    """

    parameter: str
    table: str
    schema: str | None
    name: str
    column: str | int | StarColumn | None
    alone: bool
    cast: bool = False
    certain: bool = True
    zoned: bool = False
    field: str | int | None = None
    through: str | None = None
    via: str | None = None
    named: bool = False


Passing = frozenset[tuple[str, int]]
"""Functions that may give an argument on: their names in lower case, with the positions of these arguments."""


@lru_cache(maxsize=1024)
def assigned_parameters(statement: str, dialect: str, passing: Passing = frozenset()) -> tuple[AssignedParameter, ...]:
    """The parameters that an insert, update or merge writes into columns; ``dialect`` is SQLAlchemy's name of it.

    A parameter in a comparison, a product, a cast with a precision or a function is not among them: the author computes
    with it. Any other that is not seen to reach a column may reach each that the statement writes, and in a statement
    that the parser does not understand each column of its tables.
    """
    parsed = parse_sql(statement, dialect)
    plain = plain_statement(parsed)
    if not plain.lower().startswith(_WRITES):
        return ()
    # Takes half a second, which only statements pay that write numbers with a fraction, or very large ones.
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        trees = parse_trees(plain, dialect)
    except SqlglotError:
        return tuple(_of_tables(parsed, passing))
    if any(isinstance(node, exp.Command) for tree in trees for node in tree.walk()):
        return tuple(_of_tables(parsed, passing))
    analysis = _AssignmentAnalysis(SQLGLOT_DIALECTS[dialect], exp, passing)
    return tuple(dict.fromkeys(assigned for tree in trees for assigned in analysis.of(tree)))


def _of_tables(parsed: ParsedSql, passing: Passing) -> Iterator[AssignedParameter]:
    """Each parameter with each table that is written, for a statement that the parser does not understand."""
    for table, schema, name in written_tables(parsed):
        for parameter in unplaced_parameters(parsed, {name for name, _ in passing}):
            yield AssignedParameter(parameter, table, schema, name, None, alone=True, cast=True, certain=False)


@dataclass(frozen=True, slots=True)
class _WrittenColumns:
    """Columns of one table that a statement writes; None: all of them. ``named``: see :class:`AssignedParameter`."""

    table: Any
    columns: tuple[str, ...] | None
    named: bool


class _AssignmentAnalysis:
    def __init__(self, dialect: str, exp: Any, passing: Passing) -> None:
        self._dialect = dialect
        self._exp = exp
        self._passing = passing
        self._relations = Relations(exp)
        self._values = WrittenValues(dialect, exp, self._relations)
        self._placed: set[int] = set()
        self._written: list[_WrittenColumns] = []

    def of(self, tree: Any) -> Iterator[AssignedParameter]:
        exp = self._exp
        self._placed, self._written = set(), []
        for node in tree.find_all(exp.Insert, exp.Update, exp.Merge):
            match node:
                case exp.Merge():
                    yield from self._merge(node)
                case exp.Insert() if not isinstance(node.parent, exp.When):
                    yield from self._insert(node)
                case exp.Update() if not isinstance(node.parent, exp.When):
                    tables = {table.alias_or_name.lower(): table for table in self._tables(node)}
                    yield from self._assignments(node.expressions, node.this, tables)
        yield from self._unplaced(tree)

    def _unplaced(self, tree: Any) -> Iterator[AssignedParameter]:
        """The parameters that are neither seen to reach a column nor seen not to reach one."""
        exp = self._exp
        if not self._written:
            return
        unseen = {id(node) for node in self._hidden(tree)}
        for node in tree.find_all(exp.Placeholder):
            is_seen = id(node) in self._placed and id(node) not in unseen
            if not is_seen and not self._is_computed(node) and not self._is_only_compared(tree, node):
                yield from self._anywhere(node.name, None)
        for node in tree.find_all(exp.Column, exp.Anonymous):
            is_read = isinstance(node, exp.Column) or self._values.is_inserted(node)
            is_output = id(node) in self._placed or isinstance(node.parent, exp.Returning)
            if not is_read or is_output or self._is_computed(node):
                continue
            for flow in self._parameters(node, _Flow()):
                if flow.via is not None:
                    yield from self._anywhere(flow.parameter, flow.via)

    def _anywhere(self, parameter: str, via: str | None) -> Iterator[AssignedParameter]:
        for written in self._written:
            for column in written.columns or (None,):
                assigned = self._assigned(parameter, written.table, column, alone=True, cast=True, certain=False)
                yield replace(assigned, via=via, named=written.named)

    def _hidden(self, tree: Any) -> Iterator[Any]:
        """The parameters in written rows of which a query takes all columns, so that their order is not seen."""
        exp = self._exp
        stars = (star for star in tree.find_all(exp.Star) if id(star) not in self._placed)
        if all(isinstance(star.parent, exp.Returning) or self._is_computed(star) for star in stars):
            return
        for table in tree.find_all(exp.CTE):
            returning = table.this.args.get("returning")
            if returning is not None and any(map(self._relations.is_star, returning.expressions)):
                yield from table.this.find_all(exp.Placeholder)

    def _is_computed(self, node: Any) -> bool:
        """Return whether a value is compared, returned or computed with on its way up."""
        exp = self._exp
        ends = (exp.Where, exp.Having, exp.Limit, exp.Offset, exp.Group, exp.Mul, exp.Div)
        is_result = True
        while (parent := node.parent) is not None:
            match parent:
                case exp.CTE():
                    is_result = False
                case exp.Returning():
                    if not isinstance(parent.parent.parent, exp.CTE):
                        return True
                    node = parent.parent
                    continue
                case exp.Insert() | exp.Update() | exp.Delete() | exp.Merge() | exp.When():
                    return node.arg_key not in ("expression", "expressions", "this", "with_", "from_", "using", "then")
                case exp.EQ() if node.arg_key == "expression" and self._is_assignment(parent):
                    return False
                case exp.Bracket() | exp.Case() | exp.If() if self._is_condition(node, parent):
                    return True
                case exp.Cast():
                    may_keep = self._is_cast_to_user_type(parent) or self._keeps_value(parent)
                    if not may_keep and not self._values.is_row(node):
                        return True
                case exp.Anonymous() if parent.name.lower() in PASSING_FUNCTIONS:
                    pass
                case exp.Func() if (self._function(parent), node.index or 0) in self._passing:
                    pass
                case exp.Func() if parent.sql_name().lower() not in PASSING_FUNCTIONS and not self._is_passing(parent):
                    return True
                case exp.Predicate() | exp.Mod() | exp.IntDiv():
                    return True
                case exp.Join() if node.arg_key == "on":
                    return True
                case exp.Nullif() if node.arg_key == "expression":
                    return True
                case exp.Order() if isinstance(parent.parent, exp.Query):  # not that of an aggregate
                    return True
            if isinstance(parent, ends):
                return True
            node = parent
        return is_result

    def _function(self, node: Any) -> str:
        return (node.name if isinstance(node, self._exp.Anonymous) else node.sql_name()).lower()

    def _is_only_compared(self, tree: Any, node: Any) -> bool:
        """Return whether each use of the column of a derived table in which the value stands compares or computes."""
        exp = self._exp
        if tree.find(exp.Star) is not None:
            return False
        uses = self._relations.uses(tree, node)
        return bool(uses) and all(self._is_computed(use) for use in uses)

    def _is_assignment(self, node: Any) -> bool:
        exp = self._exp
        return node.arg_key == "expressions" and isinstance(node.parent, exp.Update | exp.OnConflict)

    def _is_condition(self, node: Any, parent: Any) -> bool:
        if isinstance(parent, self._exp.If):
            return node.arg_key == "this"
        if isinstance(parent, self._exp.Bracket):
            return node.arg_key == "expressions"
        return node.arg_key == "this"

    def _is_passing(self, node: Any) -> bool:
        exp = self._exp
        return isinstance(
            node,
            exp.Case | exp.Coalesce | exp.Array | exp.Unnest | exp.Explode | exp.ArrayAppend | exp.ArrayPrepend
            | exp.ArrayConcat | exp.ArrayAgg | exp.If | exp.Connector,
        )  # fmt: skip

    def _is_cast_to_user_type(self, cast: Any) -> bool:
        """Return whether a cast is to a type of the author, as a domain and a table are, which may keep the value."""
        exp = self._exp
        return any(type_.this is exp.DataType.Type.USERDEFINED for type_ in cast.to.find_all(exp.DataType))

    def _keeps_value(self, cast: Any) -> bool:
        """Return whether a cast keeps all of a value."""
        exp, type_ = self._exp, cast.to
        while type_.is_type("array") and type_.expressions:
            type_ = type_.expressions[0]
        if type_.is_type("char", "binary", exp.DataType.Type.CHARACTER_SET):
            return self._dialect == "mysql" and not type_.expressions
        is_whole = type_.is_type(
            *("decimal", "text", "varchar", "timestamp", "timestamptz", "time", "timetz", "interval")
        )
        if self._dialect == "mysql" and type_.is_type("time", "datetime", "timestamp"):
            return [size.name for size in type_.expressions] == ["6"]
        is_bare = not type_.expressions and not isinstance(type_.this, exp.Interval)
        return is_whole and is_bare and not (self._dialect == "mysql" and not type_.is_type("decimal"))

    def _tables(self, update: Any) -> Iterable[Any]:
        joins = update.this.args.get("joins") or ()
        return [update.this, *(join.this for join in joins if isinstance(join.this, self._exp.Table))]

    def _write(self, table: Any, columns: Iterable[str] | None, *, named: bool) -> None:
        if isinstance(table, self._exp.Table):
            self._written.append(_WrittenColumns(table, None if columns is None else tuple(columns), named))

    def _insert(self, node: Any) -> Iterator[AssignedParameter]:
        exp, target = self._exp, node.this
        columns: Sequence[str] | None = None
        if isinstance(target, exp.Schema):
            target, columns = target.this, [column.name for column in target.expressions]
        self._write(target, columns, named=columns is not None)
        for row in self._relations.rows(node.expression):
            yield from self._row(target, columns, row)
        conflict = node.args.get("conflict")
        if conflict is not None:
            yield from self._assignments(conflict.expressions, target, {})

    def _merge(self, node: Any) -> Iterator[AssignedParameter]:
        exp = self._exp
        for when in node.args["whens"].expressions:
            then = when.args.get("then")
            if isinstance(then, exp.Update):
                yield from self._assignments(then.expressions, node.this, {})
            elif isinstance(then, exp.Insert) and then.expression is not None:
                named = isinstance(then.this, exp.Tuple)
                columns = [column.name for column in then.this.expressions] if named else None
                self._write(node.this, columns, named=named)
                yield from self._row(node.this, columns, then.expression.expressions)

    def _row(self, table: Any, columns: Sequence[str] | None, values: Sequence[Any]) -> Iterator[AssignedParameter]:
        for position, value in enumerate(values):
            if self._relations.is_star(value):
                yield from self._all_columns(table, columns, value, position)
                return
            if columns is None or position < len(columns):
                yield from self._flows(table, position if columns is None else columns[position], value)

    def _all_columns(
        self, table: Any, columns: Sequence[str] | None, star: Any, offset: int
    ) -> Iterator[AssignedParameter]:
        """The values that reach a table with all columns of another one that the statement writes."""
        if (written := self._relations.written(star)) is None:
            return
        self._placed.add(id(star.find(self._exp.Star)))
        of = self._assigned("", self._values.target(written), None, alone=True, cast=True, certain=False)
        for name in self._values.written_columns(written):
            names = None if columns is None else tuple(columns)
            column = StarColumn(of.table, of.schema, of.name, name, offset, names)
            yield from self._flows(
                table, column, self._relations.column(name, written.args["returning"].expressions[0])
            )

    def _assignments(self, nodes: Iterable[Any], table: Any, tables: dict[str, Any]) -> Iterator[AssignedParameter]:
        exp = self._exp
        for column, value in self._values.pairs(nodes):
            element = self._values.element(column)
            if not isinstance(element, exp.Column | exp.Literal):
                continue
            # `set amount.value = 1` is a field of a composite column, and `set t.amount = 1` a column on MySQL.
            owner = element.table.lower() if isinstance(element, exp.Column) else ""
            target = tables.get(owner, table)
            is_field = owner and owner not in tables and owner != target.alias_or_name.lower()
            name = element.table if is_field else element.name
            # Of several tables, or parts of a name, others may be meant.
            is_named = isinstance(element, exp.Column) and len(tables) <= 1 and len(element.parts) == 1
            self._write(target, [name], named=is_named)
            if value is not None:
                field = element.name if is_field else None
                for flow in self._flows(target, name, value):
                    yield replace(flow, field=field or flow.field, named=is_named)

    def _flows(self, table: Any, column: str | int | StarColumn, value: Any) -> Iterator[AssignedParameter]:
        if not isinstance(table, self._exp.Table):
            return
        row = value.this if isinstance(value, self._exp.Cast) else value
        fields = enumerate(row.expressions) if self._values.is_row(row) else [(None, value)]
        for field, part in fields:
            for flow in self._parameters(part, _Flow()):
                certain = flow.through is None and flow.via is None
                assigned = self._assigned(
                    flow.parameter, table, column, alone=flow.alone, cast=flow.cast, certain=certain
                )
                named = not isinstance(column, StarColumn)
                yield replace(assigned, zoned=flow.zoned, field=field, through=flow.through, via=flow.via, named=named)

    def _assigned(
        self,
        parameter: str,
        table: Any,
        column: str | int | StarColumn | None,
        *,
        alone: bool,
        cast: bool,
        certain: bool,
    ) -> AssignedParameter:
        name = self._exp.Table(this=table.this, db=table.args.get("db"), catalog=table.args.get("catalog"))
        written = name.sql(dialect=self._dialect)
        return AssignedParameter(parameter, written, table.db or None, table.name, column, alone, cast, certain)

    def _parameters(self, node: Any, flow: _Flow) -> Iterator[_Flow]:
        """The parameters that reach the value of ``node`` without a change of their digits after the point."""
        exp = self._exp
        if id(node) in flow.visited:
            return
        flow = replace(flow, visited=flow.visited | {id(node)})
        parts: Iterable[Any] = ()
        match node:
            case exp.Placeholder():
                self._placed.add(id(node))
                yield replace(flow, parameter=node.name)
            case exp.Paren() | exp.Alias() | exp.Neg() | exp.Abs() | exp.Nullif() | exp.Max() | exp.Min():
                parts = [node.this]
            case exp.Array() | exp.Unnest() | exp.Tuple():
                parts = node.expressions
            case exp.Anonymous() if self._values.is_inserted(node):
                yield from self._of_written(node, flow)
            case exp.Explode():
                parts, flow = [node.this, *node.expressions], replace(flow, cast=True)
            case exp.Anonymous() if node.name.lower() in PASSING_FUNCTIONS:
                parts, flow = node.expressions, replace(flow, cast=True)
            case (
                exp.Trim() | exp.Lower() | exp.Upper() | exp.Concat() | exp.Replace() | exp.Substring()
                | exp.GroupConcat() | exp.RegexpReplace() | exp.Timestamp() | exp.Time() | exp.ConvertTimezone()
            ) if self._dialect == "mysql":  # fmt: skip
                # Their text becomes a number or a time in the column, which rounds it. PostgreSQL refuses that.
                parts = [node.this, *map(node.args.get, ("replacement", "zone", "timestamp")), *node.expressions]
                parts = [part for part in parts if isinstance(part, exp.Expression)]
                name = "convert_tz" if isinstance(node, exp.ConvertTimezone) else self._function(node)
                flow = replace(flow, cast=True, alone=False, through=flow.through or name)
            case exp.DateAdd() | exp.DateSub() | exp.TimestampAdd() if self._dialect == "mysql":
                parts, flow = [node.this], replace(flow, alone=False, through=flow.through or self._function(node))
            case exp.Timestamp() | exp.Time() if (self._function(node), 0) in self._passing:
                name = self._function(node)
                parts, flow = [node.this], replace(flow, cast=True, alone=False, through=flow.through or name)
            case exp.Anonymous():
                name = node.name.lower()
                moves = self._dialect == "mysql" and name in MOVES_TIME
                parts = [
                    part
                    for at, part in enumerate(node.expressions)
                    if (name, at) in self._passing or (moves and at == 0)
                ]
                flow = replace(flow, cast=True, alone=False, through=flow.through or node.name)
            case exp.Dot() if isinstance(node.expression, exp.Anonymous):  # with the name of its schema
                parts = [node.expression]
            case exp.Dot():
                parts = self._fields(node.this, node.name.lower(), frozenset())
            case exp.ArrayAppend() | exp.ArrayPrepend():
                parts, flow = [node.this, node.expression], replace(flow, cast=True)
            case exp.ArrayConcat():
                parts, flow = [node.this, *node.expressions], replace(flow, cast=True)
            case exp.Column():
                parts = self._relations.sources(node)
                yield from self._of_written(node, flow)
            case exp.Subquery() | exp.Select():
                parts = [row[0] for row in self._relations.rows(node) if row]
            case exp.Cast() if self._keeps_value(node) or self._values.is_row(node.this):
                parts = [node.this]
                flow = replace(flow, cast=True, zoned=flow.zoned or node.to.is_type("timestamptz"))
            case exp.Add() | exp.Sub() | exp.DPipe():
                parts, flow = [node.this, node.expression], replace(flow, alone=False)
            case exp.Sum():
                parts, flow = [node.this], replace(flow, alone=False)
            case exp.Coalesce() | exp.Greatest() | exp.Least():
                parts = [node.this, *node.expressions]
            case exp.Case():
                parts = [*(branch.args["true"] for branch in node.args["ifs"]), node.args.get("default")]
            case exp.If():
                parts = [node.args["true"], node.args.get("false")]
            case exp.Window() | exp.Collate() | exp.AnyValue() | exp.FirstValue() | exp.LastValue() | exp.NthValue():
                parts, flow = [node.this], replace(flow, cast=True)
            case exp.Lag() | exp.Lead():
                parts, flow = [node.this, node.args.get("default")], replace(flow, cast=True)
        for part in parts:
            if part is not None:
                yield from self._parameters(part, flow)

    def _fields(self, row: Any, name: str, visited: frozenset[int]) -> Iterator[Any]:
        """The expressions behind a field of a row, as `(excluded).x` and `(p.w).x` read it."""
        exp = self._exp
        if id(row) in visited:
            return
        inner = [row.this] if isinstance(row, exp.Paren | exp.Alias) else []
        if isinstance(row, exp.Column):
            sources = list(self._sources(row))
            if not row.table:
                field = self._relations.column(name, row, row.name)
                if next(self._sources(field), None) is not None:
                    self._placed.add(id(row))
                    yield field
                    return
            inner = sources
        for part in inner:
            yield from self._fields(part, name, visited | {id(row)})

    def _sources(self, column: Any) -> Iterator[Any]:
        yield from self._relations.sources(column)
        yield from self._values.sources(column)

    def _of_written(self, node: Any, flow: _Flow) -> Iterator[_Flow]:
        """The parameters that reach a column of the statement, whose value ``node`` is."""
        self._placed.add(id(node))
        name = node.expressions[0].name if self._values.is_inserted(node) else node.name
        name = node.table if name == "*" else name
        for part in self._values.sources(node):
            yield from self._parameters(part, replace(flow, via=flow.via or name.lower()))


@dataclass(frozen=True, slots=True)
class _Flow:
    """The way of a parameter to the value of a column, as :class:`AssignedParameter` has it."""

    parameter: str = ""
    alone: bool = True
    cast: bool = False
    zoned: bool = False
    through: str | None = None
    via: str | None = None
    visited: frozenset[int] = frozenset()
