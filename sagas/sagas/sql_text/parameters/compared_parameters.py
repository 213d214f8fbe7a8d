"""Finds the operation in which each parameter of SQL takes part, so that no value is another one there. Pure.

A database makes a number of text where it computes, and an integer of a number where it counts, each in its own way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.sql_text.parameters.operand_kinds import NEUTRAL, NUMBER, TIME, UNKNOWN, OperandKind, OperandKinds
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.syntax_trees import SQLGLOT_DIALECTS
from sagas.sql_text.written_tables import plain_trees

Use = Literal["element", "compared", "computed", "integer", "read"]
"""An element of `in (…)`, an operand of a comparison, of arithmetic or a condition, a count, or text read as a time."""


@dataclass(frozen=True, slots=True)
class ComparedParameter:
    """A parameter that stands for a single value. ``column``: what it is compared with, if that is a plain column.

    ``kind`` is that of the other operands: the parameter is a number where they are. ``direct`` False: its value goes
    through a query or a function first. ``divided``: it is a part of a division, whose result depends on how a number
    is written. ``is_chosen``: one of several values without a kind becomes the value of a column: their greatest, or
    the first of a union. ``in_union``: it is one of the values of a column, whose type they decide together.
    """

    parameter: str
    use: Use
    column: AssignedParameter | None = None
    kind: OperandKind = NEUTRAL
    direct: bool = True
    divided: bool = False
    is_chosen: bool = False
    in_union: bool = False


@lru_cache(maxsize=1024)
def compared_parameters(statement: ParsedSql) -> tuple[ComparedParameter, ...]:
    """The parameters that are compared, computed or counted with; those of other functions are not among them."""
    if not statement.parameters:
        return ()
    from sqlglot import exp  # takes half a second

    trees = plain_trees(statement)
    analysis = _ComparisonAnalysis(statement.dialect, exp)
    if not trees or any(isinstance(node, exp.Command) for tree in trees for node in tree.walk()):
        return tuple(_operands(statement))
    return tuple(each for tree in trees for each in analysis.of(tree))


_ARITHMETIC = ("+", "-", "*", "/", "%", "div", "mod")


def _operands(statement: ParsedSql) -> Iterator[ComparedParameter]:
    """The operands of arithmetic in a statement that the parser does not understand."""
    kind = UNKNOWN if statement.dialect == "postgresql" else NUMBER
    tokens = list(statement.significant())
    words = [statement.text_of(token).lower() for token in tokens]
    for at, token in enumerate(tokens):
        around = (words[at - 1] if at else "", *words[at + 1 : at + 2])
        is_operand = token.kind == "parameter" and any(word in _ARITHMETIC for word in around)
        if is_operand and "interval" not in words[at + 1 : at + 3]:
            yield ComparedParameter(statement.text_of(token)[1:], "computed", kind=kind)


class _ComparisonAnalysis:
    def __init__(self, dialect: str, exp: Any) -> None:
        self._dialect = dialect
        self._exp = exp
        self._kinds = OperandKinds(SQLGLOT_DIALECTS[dialect], exp)
        self._comparisons = (
            *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
            *(exp.Like, exp.ILike, exp.Glob, exp.RegexpLike),
        )
        self._of_text = (exp.Like, exp.ILike, exp.Glob, exp.RegexpLike)
        self._arithmetic = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg)
        self._conditions = (exp.And, exp.Or, exp.Not, exp.Where, exp.Having)

    def of(self, tree: Any) -> Iterator[ComparedParameter]:
        for placeholder in tree.find_all(self._exp.Placeholder):
            yield from dict.fromkeys(self._uses(tree, placeholder, _Path(placeholder.name)))

    def _uses(self, tree: Any, node: Any, path: _Path) -> Iterator[ComparedParameter]:
        """The uses of the value of ``node`` on its way up the tree."""
        exp, on_postgresql = self._exp, self._dialect == "postgresql"
        output = 0
        while (parent := node.parent) is not None:
            key = node.arg_key
            match parent:
                case exp.Paren() | exp.Coalesce() | exp.Alias() | exp.Subquery() if not self._is_relation(parent):
                    path = replace(path, direct=path.direct and not isinstance(parent, exp.Subquery))
                case exp.Tuple() if isinstance(parent.parent, exp.Values):
                    if isinstance(parent.parent.parent, exp.Insert):
                        yield from self._assigned(path)
                    else:
                        yield from self._of_column(path, parent.parent, node.index)
                        yield from self._of_relation(tree, node, path)
                    return
                case exp.Tuple():
                    path = replace(path, position=node.index)
                case exp.If() if key == "this":
                    case = parent.parent
                    if isinstance(case, exp.Case) and case.this is not None:
                        yield self._compared(path, "compared", [case.this])
                    return
                case exp.Case() if key == "this":
                    yield self._compared(path, "compared", [branch.this for branch in parent.args["ifs"]])
                    return
                case exp.If() | exp.Case():
                    pass
                case exp.Nullif() if key == "this":
                    pass
                case exp.Nullif():
                    yield self._compared(path, "compared", [parent.this])
                    return
                case exp.In() if key == "expressions":
                    yield self._compared(path, "element", [parent.this])
                    return
                case exp.In():
                    yield self._compared(path, "compared", parent.expressions or [parent.args.get("query")])
                    return
                case exp.Between():
                    others = [parent.args["low"], parent.args["high"]] if key == "this" else [parent.this]
                    yield self._compared(path, "compared", others)
                    return
                case exp.EQ() if parent.arg_key == "expressions" and isinstance(
                    parent.parent, exp.Update | exp.OnConflict
                ):
                    yield from self._assigned(path)
                    return
                case _ if isinstance(parent, self._comparisons):
                    other = parent.expression if key == "this" else parent.this
                    if not isinstance(other, exp.Null):
                        yield self._compared(path, "compared", [other], of_text=isinstance(parent, self._of_text))
                    return
                case exp.Greatest() | exp.Least() | exp.Max() | exp.Min():
                    others = [part for part in (parent.this, *parent.expressions) if part is not node] or [node]
                    kind = self._kinds.combined(others)
                    if kind.is_known and kind != NEUTRAL:
                        yield ComparedParameter(path.parameter, "compared", kind=kind, direct=False)
                        return
                    path = replace(path, is_among=kind == NEUTRAL, direct=False)
                case _ if self._is_count(node, parent):
                    yield ComparedParameter(path.parameter, "integer", kind=NUMBER, direct=path.direct)
                    return
                case _ if on_postgresql and isinstance(parent, self._arithmetic):
                    yield ComparedParameter(path.parameter, "computed", kind=UNKNOWN, direct=path.direct)
                    return  # PostgreSQL itself knows the types of its operands
                case _ if on_postgresql and not isinstance(parent, exp.Query | exp.Values | exp.SetOperation):
                    return
                case _ if self._kinds.reads_time(node, parent):
                    yield ComparedParameter(path.parameter, "read", kind=TIME, direct=path.direct)
                    return
                case _ if isinstance(parent, self._arithmetic) or self._kinds.takes_number(parent, key):
                    divided = self._is_divided(parent)
                    yield ComparedParameter(
                        path.parameter, "computed", kind=NUMBER, direct=path.direct, divided=divided
                    )
                    return
                case _ if isinstance(parent, self._conditions):
                    if path.direct:
                        yield ComparedParameter(path.parameter, "computed")
                    return
                case exp.Query() if key == "expressions" and isinstance(parent.parent, exp.Insert):
                    yield from self._assigned(path)
                    return
                case exp.Query() if key == "expressions":
                    output = node.index
                    path = replace(path, is_among=path.is_among or isinstance(parent.parent, exp.SetOperation))
                    yield from self._of_relation(tree, node, path)
                case exp.SetOperation():
                    yield from self._of_column(path, parent.expression if key == "this" else parent.this, output)
                    if isinstance(parent.parent, exp.Insert):
                        yield from self._assigned(path)
                case _:
                    return
            node = parent

    def _of_relation(self, tree: Any, node: Any, path: _Path) -> Iterator[ComparedParameter]:
        """The uses of a column of a derived table."""
        if id(node) not in path.visited:
            path = replace(path, visited=path.visited | {id(node)}, direct=False)
            for column in self._kinds.relations.uses(tree, node):
                yield from self._uses(tree, column, path)

    def _of_column(self, path: _Path, rows: Any, at: int) -> Iterator[ComparedParameter]:
        """The use as one of the values of a column, with the others of which it is ordered and made distinct."""
        kind = self._kinds.combined(row[at] for row in self._kinds.relations.rows(rows) if at < len(row))
        if self._dialect != "postgresql" and kind.is_known and kind != NEUTRAL:
            yield ComparedParameter(path.parameter, "compared", kind=kind, direct=False, in_union=True)

    def _assigned(self, path: _Path) -> Iterator[ComparedParameter]:
        """The greatest of values becomes that of a column, whose type decides if no other operand has one."""
        if path.is_among:
            yield ComparedParameter(path.parameter, "compared", direct=False, is_chosen=True)

    def _is_relation(self, subquery: Any) -> bool:
        exp = self._exp
        return isinstance(subquery, exp.Subquery) and isinstance(subquery.parent, exp.From | exp.Join | exp.Lateral)

    def _compared(self, path: _Path, use: Use, others: Sequence[Any], *, of_text: bool = False) -> ComparedParameter:
        exp = self._exp
        others = [other for other in others if other is not None]
        if path.position is not None:
            others = [
                other.expressions[path.position]
                for other in others
                if isinstance(other, exp.Tuple) and path.position < len(other.expressions)
            ]
        kind = NEUTRAL if of_text else self._kinds.combined(others)
        other = others[0] if len(others) == 1 else None
        column = self._kinds.column(other, path.parameter) if use != "compared" or path.direct else None
        return ComparedParameter(path.parameter, use, column, kind, path.direct)

    def _is_count(self, node: Any, parent: Any) -> bool:
        """Return whether a number is used as an integer, to which the database would round it."""
        exp, key = self._exp, node.arg_key
        match parent:
            case exp.Limit() | exp.Offset() | exp.Fetch() | exp.WindowSpec():
                return True
            case exp.Bracket() | exp.Slice():
                return key != "this" or isinstance(parent, exp.Slice)
        return self._dialect != "postgresql" and self._kinds.takes_integer(parent, node, self._dialect)

    def _is_divided(self, node: Any) -> bool:
        exp = self._exp
        while isinstance(node, exp.Paren | exp.Coalesce | exp.Binary | exp.Unary):
            if isinstance(node, exp.Div):
                return True
            node = node.parent
        return False


@dataclass(frozen=True, slots=True)
class _Path:
    """The way of a value up to its use. ``position`` is that in a row; ``is_among``: of values without a kind."""

    parameter: str
    direct: bool = True
    position: int | None = None
    is_among: bool = False
    visited: frozenset[int] = frozenset()
