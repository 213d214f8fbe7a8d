"""The kind of value that an expression of SQL has, as far as the statement and its columns show it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sagas.sql_text.parameters.assigned_parameters import AssignedParameter
from sagas.sql_text.parameters.relations import Relations


@dataclass(frozen=True, slots=True)
class OperandKind:
    """``columns`` are those whose types decide. ``is_known`` False: the statement does not show what kind it is.

    ``is_typeless``: a value out of JSON on SQLite, which is text or a number. ``is_text``: at least one part is text
    that is not a number.
    """

    is_number: bool = False
    is_time: bool = False
    is_typeless: bool = False
    columns: tuple[AssignedParameter, ...] = ()
    is_known: bool = True
    is_text: bool = False


NUMBER, TIME = OperandKind(is_number=True), OperandKind(is_time=True)
TYPELESS = OperandKind(is_typeless=True)
NEUTRAL = OperandKind()
"""The kind of NULL and of a parameter, which take that of the other operands."""
UNKNOWN = OperandKind(is_known=False)
TEXT = OperandKind(is_known=False, is_text=True)

_NUMBER_FUNCTIONS = frozenset(
    """
    total conv crc32 char_length character_length bit_length octet_length unixepoch julianday unix_timestamp degrees
    radians cot bit_count to_days to_seconds time_to_sec
""".split()  # noqa: SIM905
)
"""Functions, which the parser does not know, with a number as their result."""
_TIME_FUNCTIONS = ("now", "datetime")
_TAKE_NUMBER = frozenset("total degrees radians cot".split())  # noqa: SIM905

_TIME_ARGUMENTS = {
    "time": (0,), "datetime": (0,), "julianday": (0,), "unixepoch": (0,), "timediff": (0, 1), "unix_timestamp": (0,),
    "weekday": (0,), "addtime": (0,), "subtime": (0,), "adddate": (0,), "subdate": (0,), "microsecond": (0,),
    "time_to_sec": (0,), "to_seconds": (0,), "yearweek": (0,), "time_format": (0,),
}  # fmt: skip
"""The positions of arguments that are read as times, of functions that the parser does not know."""

_TIME_READERS = frozenset(
    """
    Date Time Timestamp TsOrDsToDate TsOrDsToTimestamp TsOrDsToTime DateAdd DateSub DateDiff TimestampAdd TimestampSub
    TimestampDiff LastDay Hour Minute Second Quarter Dayname Monthname ConvertTimezone DayOfWeek DayOfMonth DayOfYear
    WeekOfYear
""".split()  # noqa: SIM905
)
"""Functions, which the parser knows, that read a text as a time."""

_INTEGER_ARGUMENTS = {
    "makedate": (0, 1), "maketime": (0, 1), "adddate": (1,), "subdate": (1,), "from_days": (0,), "period_add": (0, 1),
    "period_diff": (0, 1), "conv": (1, 2), "nth_value": (1,), "randomblob": (0,), "zeroblob": (0,),
}  # fmt: skip
"""The positions of arguments that are integers, of functions that the parser does not know."""

_INTEGER_KEYS = {
    "Left": ("expression",), "Right": ("expression",), "Substring": ("start", "length"), "Repeat": ("times",),
    "Pad": ("expression",), "Space": ("this",), "Round": ("decimals",), "Trunc": ("decimals",), "Elt": ("this",),
    "SubstringIndex": ("count",), "Stuff": ("start", "length"), "StrPosition": ("position",), "Ntile": ("this",),
    "Lead": ("offset",), "Lag": ("offset",), "NthValue": ("offset",), "Chr": ("expressions",), "Week": ("mode",),
    "NumberToStr": ("format",), "DateAdd": ("expression",), "DateSub": ("expression",), "TimestampAdd": ("expression",),
}  # fmt: skip
"""The arguments that are integers, of functions that the parser knows."""

_NUMBER_TEXT = re.compile(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?\s*", re.ASCII | re.IGNORECASE)

_INTERVALS = ("MICROSECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
"""The units of which MySQL and MariaDB take an integer."""


def is_moved_time(node: Any, exp: Any) -> bool:
    """Return whether a sum moves a time by an interval."""
    return isinstance(node, exp.Add | exp.Sub) and any(
        isinstance(operand, exp.Interval) for operand in (node.this, node.expression)
    )


class OperandKinds:
    """``exp`` is sqlglot's module of expressions, ``dialect`` its name of the dialect."""

    def __init__(self, dialect: str, exp: Any) -> None:
        self._dialect, self._exp = dialect, exp
        self.relations = Relations(exp)
        self._numbers = (
            *(exp.Sum, exp.Avg, exp.Abs, exp.Round, exp.Trunc, exp.Ceil, exp.Floor, exp.Sign, exp.Sqrt, exp.Pow),
            *(exp.Exp, exp.Ln, exp.Log, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop),
        )
        self._bits = (
            *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift),
            exp.BitwiseNot,
        )

    def combined(self, parts: Iterable[Any]) -> OperandKind:
        """The kind of expressions that are compared with each other, or one of which is the value."""
        kinds = [part if isinstance(part, OperandKind) else self._kind(part, frozenset()) for part in parts]
        return _combined(kinds)

    def column(self, node: Any, parameter: str) -> AssignedParameter | None:
        """The column of a table that ``node`` is, as far as the statement shows whose it is."""
        exp = self._exp
        while isinstance(node, exp.Paren):
            node = node.this
        if not isinstance(node, exp.Column):
            return None
        table = self._table(node)
        if table is None:
            return None
        name = exp.Table(this=table.this, db=table.args.get("db"), catalog=table.args.get("catalog"))
        quoted = name.sql(dialect=self._dialect)
        return AssignedParameter(parameter, quoted, table.db or None, table.name, node.name, alone=True)

    def takes_number(self, function: Any, key: str) -> bool:
        """Return whether the argument ``key`` of a function is a number with all of its digits."""
        exp = self._exp
        if isinstance(function, exp.Distinct):
            return isinstance(function.parent, exp.Sum | exp.Avg)
        if isinstance(function, exp.Anonymous):
            return function.name.lower() in _TAKE_NUMBER
        return isinstance(function, self._numbers) and key in ("this", "expression")

    def takes_integer(self, parent: Any, node: Any, dialect: str) -> bool:
        """Return whether SQLite, MySQL or MariaDB makes an integer of an operand or argument."""
        exp = self._exp
        if isinstance(parent, self._bits) or (dialect == "sqlite" and isinstance(parent, exp.Mod)):
            return True
        if isinstance(parent, exp.Anonymous):
            return node.index in _INTEGER_ARGUMENTS.get(parent.name.lower(), ())
        unit = parent.args.get("unit")
        if isinstance(parent, exp.Interval):
            return unit is not None and unit.name.upper() in _INTERVALS
        is_other_unit = unit is not None and unit.name.upper() not in _INTERVALS
        return node.arg_key in _INTEGER_KEYS.get(type(parent).__name__, ()) and not is_other_unit

    def reads_time(self, node: Any, parent: Any) -> bool:
        """Return whether MySQL, MariaDB or SQLite reads a text as a time."""
        exp, name = self._exp, type(parent).__name__
        if isinstance(parent, exp.Anonymous):
            return node.index in _TIME_ARGUMENTS.get(parent.name.lower(), ())
        if isinstance(parent, exp.Cast):
            return self._dialect == "mysql" and self._kind_of_type(parent.to) == TIME
        if isinstance(parent, exp.Extract):
            return node.arg_key == "expression"
        if is_moved_time(parent, exp):
            return True
        return name in _TIME_READERS and not self.takes_integer(parent, node, self._dialect)

    def _kind(self, node: Any, visited: frozenset[int]) -> OperandKind:
        exp = self._exp
        if node is None or id(node) in visited:
            return NEUTRAL
        visited |= {id(node)}
        match node:
            case exp.Null() | exp.Placeholder():
                return NEUTRAL
            case exp.Literal():
                return NUMBER if not node.is_string else UNKNOWN if _NUMBER_TEXT.fullmatch(node.name) else TEXT
            case (
                exp.Lower() | exp.Upper() | exp.Trim() | exp.Concat() | exp.ConcatWs() | exp.Substring() | exp.Replace()
            ):
                return TEXT
            case exp.Left() | exp.Right() | exp.Pad() | exp.Repeat() | exp.Reverse() | exp.GroupConcat() | exp.DPipe():
                return TEXT
            case exp.Column():
                return self._kind_of_column(node, visited)
            case exp.Add() | exp.Sub() if is_moved_time(node, exp):
                return _combined(
                    self._kind(operand, visited)
                    for operand in (node.this, node.expression)
                    if not isinstance(operand, exp.Interval)
                )
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.IntDiv() | exp.Mod() | exp.Neg() | exp.Count():
                return NUMBER
            case exp.CurrentTimestamp() | exp.CurrentDate() | exp.CurrentTime() | exp.UtcTimestamp():
                return TIME
            case exp.JSONExtractScalar() if self._dialect == "sqlite":
                return TYPELESS
            case exp.Anonymous():
                name = node.name.lower()
                return NUMBER if name in _NUMBER_FUNCTIONS else TIME if name in _TIME_FUNCTIONS else UNKNOWN
            case exp.Date() | exp.TsOrDsToDate() | exp.LastDay():
                return TIME
            case exp.DateAdd() | exp.DateSub() | exp.TimestampAdd():
                return self._kind(node.this, visited)
            case exp.Length() | exp.DateDiff() | exp.TimestampDiff() | exp.StrPosition() | exp.RowNumber():
                return NUMBER
            case exp.Cast():
                return self._kind_of_type(node.to)
            case _ if isinstance(node, self._numbers + self._bits):
                return NUMBER
        parts = list(self._parts(node))
        return _combined(self._kind(part, visited) for part in parts) if parts else UNKNOWN

    def _parts(self, node: Any) -> Iterator[Any]:
        """The expressions of which one is the value of ``node``."""
        exp = self._exp
        match node:
            case exp.Paren() | exp.Alias() | exp.Max() | exp.Min() | exp.Nullif() | exp.Any() | exp.All():
                yield node.this
            case exp.Window() | exp.AnyValue():
                yield node.this
            case exp.Coalesce() | exp.Greatest() | exp.Least():
                yield from (node.this, *node.expressions)
            case exp.Case():
                yield from (branch.args["true"] for branch in node.args["ifs"])
                yield node.args.get("default")
            case exp.If():
                yield from (node.args["true"], node.args.get("false"))
            case exp.Subquery() | exp.Select() | exp.SetOperation():
                yield from (row[0] for row in self.relations.rows(node) if row)

    def parts(self, node: Any, visited: frozenset[int] = frozenset()) -> Iterator[Any]:
        """The expressions of which one is the value of ``node``, and that are no such choice themselves."""
        if node is None or id(node) in visited:
            return
        is_column = isinstance(node, self._exp.Column)
        parts = list(self.relations.sources(node) if is_column else self._parts(node))
        if not parts and not isinstance(node, self._exp.Placeholder):
            yield node
        for part in parts:
            yield from self.parts(part, visited | {id(node)})

    def _kind_of_column(self, node: Any, visited: frozenset[int]) -> OperandKind:
        sources = list(self.relations.sources(node))
        if self._dialect == "sqlite" and any(_is_json_table(source) for source in sources):
            return TYPELESS
        if sources:
            return _combined(self._kind(source, visited) for source in sources)
        column = self.column(node, "")
        return UNKNOWN if column is None else OperandKind(columns=(column,))

    def _kind_of_type(self, type_: Any) -> OperandKind:
        data = self._exp.DataType
        if type_.this in data.NUMERIC_TYPES:
            return NUMBER
        if type_.this in data.TEXT_TYPES:
            return TEXT
        return TIME if type_.this in data.TEMPORAL_TYPES else UNKNOWN

    def _table(self, column: Any) -> Any:
        exp, node, owner = self._exp, column.parent, column.table.lower()
        tables: list[Any] = []
        common: set[str] = set()
        while node is not None:
            if with_ := node.args.get("with_"):
                common |= {table.alias.lower() for table in with_.expressions}
            if isinstance(node, exp.Select | exp.Update | exp.Delete | exp.Insert) and (owner or not tables):
                tables += self._relations_of(node)
            node = node.parent
        if owner:
            tables = [table for table in tables if table.alias_or_name.lower() == owner][:1]
        if len(tables) != 1 or not isinstance(tables[0], exp.Table) or tables[0].name.lower() in common:
            return None
        return tables[0]

    def _relations_of(self, node: Any) -> Iterator[Any]:
        exp = self._exp
        if not isinstance(node, exp.Select):
            target = node.this.this if isinstance(node.this, exp.Schema) else node.this
            yield target
            yield from (join.this for join in target.args.get("joins") or ())
        for key in ("from_", "using"):
            relation = node.args.get(key)
            if hasattr(relation, "this"):
                yield relation.this if key == "from_" else relation
        yield from (join.this for join in node.args.get("joins") or ())


def _is_json_table(node: Any) -> bool:
    return node.name.lower() in ("json_each", "json_tree")


def _combined(kinds: Iterable[OperandKind]) -> OperandKind:
    kinds = [kind for kind in kinds if kind != NEUTRAL]
    columns = tuple(column for kind in kinds for column in kind.columns)
    is_number, is_time = any(kind.is_number for kind in kinds), any(kind.is_time for kind in kinds)
    if not all(kind.is_known for kind in kinds):
        is_text = all(kind.is_text or kind.is_known for kind in kinds) and not is_time
        return OperandKind(is_number=is_number, columns=columns, is_known=False, is_text=is_text)
    is_typeless = any(kind.is_typeless for kind in kinds)
    return UNKNOWN if is_number and is_time else OperandKind(is_number, is_time, is_typeless, columns)
