"""Where parameters of a SQL statement are compared or computed with as single values. Pure.

A list or an object has no form there: a database would compare its JSON text, and MySQL and MariaDB take such text for
the number 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from sagas.builtins.assigned_parameters import AssignedParameter
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.row_changes import SQLGLOT_DIALECTS

Use = Literal["element", "compared", "computed"]
"""An element of `in (…)`, an operand of a comparison, or an operand of arithmetic or a condition."""


@dataclass(frozen=True, slots=True)
class ComparedParameter:
    """A parameter that stands for a single value. ``column``: what it is compared with, if that is a plain column."""

    parameter: str
    use: Use
    column: AssignedParameter | None = None


@lru_cache(maxsize=1024)
def compared_parameters(statement: ParsedSql) -> tuple[ComparedParameter, ...]:
    """The parameters that are compared or computed with; those of a cast or another function are not among them."""
    if not statement.parameters:
        return ()
    import sqlglot  # takes half a second
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        trees = sqlglot.parse(statement.source, dialect=SQLGLOT_DIALECTS[statement.dialect])
    except SqlglotError:
        return tuple(_elements(statement))
    analysis = _Analysis(statement.dialect, exp)
    seen = tuple(each for tree in trees if tree is not None for each in analysis.of(tree))
    return seen or tuple(_elements(statement))


def _elements(statement: ParsedSql) -> Iterator[ComparedParameter]:
    """The elements of `in (…)` in a statement that the parser does not understand."""
    tokens = list(statement.significant())
    words = [statement.text_of(token).lower() for token in tokens]
    opened: list[bool] = []
    for at, (token, word) in enumerate(zip(tokens, words, strict=True)):
        if token.kind == "open":
            opened.append(words[at - 1 : at] == ["in"])
        elif token.kind == "close" and opened:
            opened.pop()
        elif token.kind == "parameter" and opened and opened[-1]:
            is_bare = words[at - 1] in ("(", ",") and words[at + 1 : at + 2] in ([")"], [","])
            yield from [ComparedParameter(word[1:], "element")] if is_bare else ()


class _Analysis:
    def __init__(self, dialect: str, exp: Any) -> None:
        self._is_postgresql = dialect == "postgresql"
        self._dialect = SQLGLOT_DIALECTS[dialect]
        self._exp = exp
        self._comparisons = (
            *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
            *(exp.Like, exp.ILike, exp.Glob, exp.RegexpLike),
        )
        self._arithmetic = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg)
        self._conditions = (exp.And, exp.Or, exp.Not, exp.Where, exp.Having)

    def of(self, tree: Any) -> Iterator[ComparedParameter]:
        for placeholder in tree.find_all(self._exp.Placeholder):
            use, other = self._use(placeholder)
            if use is not None:
                yield ComparedParameter(placeholder.name, use, self._column(other, placeholder.name))

    def _use(self, node: Any) -> tuple[Use | None, Any]:
        """What the value of ``node`` is used for, and the expression that it is compared with."""
        exp = self._exp
        while (parent := node.parent) is not None:
            match parent:
                case exp.Paren() | exp.Coalesce() | exp.Tuple():
                    pass
                case exp.If() | exp.Case() if node.arg_key in ("true", "false", "default", "ifs"):
                    pass
                case exp.Nullif() if node.arg_key == "this":
                    pass
                case exp.In():
                    return ("element", parent.this) if node.arg_key == "expressions" else ("compared", None)
                case exp.Between():
                    return "compared", None if node.arg_key == "this" else parent.this
                case exp.EQ() if parent.arg_key == "expressions" and isinstance(
                    parent.parent, exp.Update | exp.OnConflict
                ):
                    return None, None
                case _ if isinstance(parent, self._comparisons):
                    other = parent.expression if node.arg_key == "this" else parent.this
                    return (None, None) if isinstance(other, exp.Null) else ("compared", other)
                case _ if isinstance(parent, self._arithmetic + self._conditions) and not self._is_postgresql:
                    return "computed", None  # PostgreSQL knows the types of its operands
                case _:
                    return None, None
            node = parent
        return None, None

    def _column(self, node: Any, parameter: str) -> AssignedParameter | None:
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

    def _table(self, column: Any) -> Any:
        exp, node, owner = self._exp, column.parent, column.table.lower()
        tables: list[Any] = []
        common: set[str] = set()
        while node is not None:
            if with_ := node.args.get("with_"):
                common |= {table.alias.lower() for table in with_.expressions}
            if isinstance(node, exp.Select | exp.Update | exp.Delete | exp.Insert) and (owner or not tables):
                tables += self._relations(node)
            node = node.parent
        if owner:
            tables = [table for table in tables if table.alias_or_name.lower() == owner][:1]
        if len(tables) != 1 or not isinstance(tables[0], exp.Table) or tables[0].name.lower() in common:
            return None
        return tables[0]

    def _relations(self, node: Any) -> Iterator[Any]:
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


def instead_of_structured(parameter: str, place: ComparedParameter, dialect: str) -> str:
    """What to write for a list or an object at this place."""
    name = f":{parameter}"
    match dialect, place.use:
        case "postgresql", "element":
            return f"write `= any({name})` for `in ({name})`"
        case "postgresql", _:
            return f"write `= any({name})` for its items, or a cast such as `{name}::jsonb`"
        case "sqlite", "element":
            return f"write `in (select value from json_each({name}))`"  # noqa: S608 - shown, not run
        case "sqlite", _:
            return f"take its values out with json_extract({name}, '$…') or json_each({name})"
        case _, "element":
            table = f"json_table({name}, '$[*]' columns (v bigint path '$')) j"
            return f"write `in (select v from {table})` with the type of your values"  # noqa: S608 - shown, not run
    return f"take its values out with json_value({name}, '$…') or json_table({name}, …)"
