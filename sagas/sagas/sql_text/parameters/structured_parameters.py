"""The parameters of a SQL statement that may be lists or objects. Pure.

A list or an object is text for most places of a statement: `sku not in (select :skus)` compares each row with the JSON
text, and MySQL and MariaDB take this text for the number 0. So such a value is allowed only where it becomes a column's
value or a result, where a function or an operator takes JSON or an array, and in a cast to one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from sagas.sql_text.parameters.structured_functions import is_cast_type, taken_by, taken_by_name
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.written_tables import plain_trees

StructuredUse = Literal["element", "compared", "computed", "single", "array"]

PLACES: Mapping[StructuredUse, str] = {
    "element": "an element of `in (…)`, which is a single value",
    "compared": "compared with a single value",
    "computed": "an operand, which is a single value",
    "single": "a single value",
    "array": "an array of PostgreSQL",
}


@dataclass(frozen=True, slots=True)
class StructuredPlace:
    """A use of a parameter that takes no list or object, or only some of them.

    ``direct``: the parameter stands at this place itself, and its value does not come through a query.
    """

    parameter: str
    use: StructuredUse
    direct: bool = True


@lru_cache(maxsize=1024)
def structured_places(statement: ParsedSql) -> tuple[StructuredPlace, ...]:
    """The places at which not every list or object is allowed."""
    if not statement.parameters:
        return ()
    from sqlglot import exp  # takes half a second

    trees = plain_trees(statement)
    if not trees or any(tree.find(exp.Command) for tree in trees):
        return tuple(_unread(statement))
    walks = [_Walk(statement.dialect, exp, tree) for tree in trees]
    return tuple(dict.fromkeys(place for walk in walks for place in walk.places()))


@dataclass(frozen=True, slots=True)
class _Value:
    """A parameter on its way up. ``is_text``: after a cast to text; ``is_item``: inside an array."""

    parameter: str
    direct: bool = True
    is_text: bool = False
    is_item: bool = False
    visited: frozenset[int] = frozenset()


class _Walk:
    """Follows the values of parameters to their uses; ``exp`` is sqlglot's module of expressions."""

    def __init__(self, dialect: str, exp: Any, tree: Any) -> None:
        self._dialect = dialect
        self._exp = exp
        self._tree = tree
        self._comparisons = (
            *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
            *(exp.Like, exp.ILike, exp.Glob, exp.RegexpLike, exp.RegexpILike, exp.SimilarTo, exp.Between),
        )
        self._arithmetic = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg)
        self._conditions = (exp.And, exp.Or, exp.Xor, exp.Not, exp.Where, exp.Having)
        self._passing = (
            exp.Paren,
            exp.Alias,
            exp.Tuple,
            exp.Coalesce,
            exp.DPipe,
            exp.Collate,
            exp.Kwarg,
            exp.Values,
            exp.Subquery,
        )

    def places(self) -> Iterator[StructuredPlace]:
        for placeholder in self._tree.find_all(self._exp.Placeholder):
            yield from self._uses(placeholder, _Value(placeholder.name))

    def _uses(self, node: Any, value: _Value) -> Iterator[StructuredPlace]:
        """The uses of the value of ``node`` that do not take every list and object."""
        exp = self._exp
        while (parent := node.parent) is not None:
            key = node.arg_key
            match parent:
                case exp.Insert() | exp.Update() | exp.Merge() | exp.Returning():
                    yield from () if key in ("expression", "expressions") else self._refused(value, "single")
                    return
                case exp.EQ() if key == "expression" and self._is_assignment(parent):
                    return
                case exp.Cast():
                    if is_cast_type(parent.to, "json"):
                        return
                    if is_cast_type(parent.to, "array"):
                        yield from self._refused(value, "array")
                        return
                    value = replace(value, is_text=value.is_text or is_cast_type(parent.to, "text"))
                case exp.Array():
                    value = replace(value, is_item=True)
                case exp.Tuple() | exp.Paren() if isinstance(parent.parent, exp.Values):
                    yield from self._leave(parent.parent, _numbered(node.index or 0), node.index or 0, value)
                    return
                case exp.Query() if not isinstance(parent, exp.Subquery):
                    if key == "expressions":
                        names = frozenset([node.alias_or_name.lower()])
                        yield from self._leave(parent, names, node.index or 0, value)
                    else:
                        yield from self._refused(value, "single")
                    return
                case exp.Is() | exp.Exists():
                    return
                case exp.If() if key != "this" or isinstance(parent.parent, exp.Case):
                    if key == "this":
                        yield from self._refused(value, "compared" if parent.parent.this else "computed")
                        return
                case exp.Case() | exp.Nvl2() if key != "this":
                    pass
                case exp.Anonymous() if parent.name.lower() == "row":
                    pass
                case _ if isinstance(parent, self._passing):
                    pass
                case _:
                    yield from self._taken(node, parent, value)
                    return
            node = parent

    def _taken(self, node: Any, parent: Any, value: _Value) -> Iterator[StructuredPlace]:
        """The use of a value by a place that gives it on to none."""
        exp = self._exp
        match parent:
            case exp.In():
                yield from self._refused(value, "element")
            case exp.Any() | exp.All() if isinstance(node, exp.Query):
                yield from self._refused(value, "compared")
            case exp.Case() | exp.Nullif() | exp.Greatest() | exp.Least():
                yield from self._refused(value, "compared")
            case _ if isinstance(parent, self._comparisons):
                other = parent.expression if node.arg_key == "this" else parent.this
                yield from () if isinstance(other, exp.Null) else self._refused(value, "compared")
            case exp.If() | exp.Nvl2():
                yield from self._refused(value, "computed")
            case _ if isinstance(parent, self._conditions):
                yield from self._refused(value, "computed")
            case _ if isinstance(parent, self._arithmetic):
                yield from self._refused(value, "array" if self._dialect == "postgresql" else "computed")
            case _:
                taken = None if value.is_item else taken_by(parent, node, self._dialect)
                if taken == "array":
                    yield from self._refused(value, "array")
                elif taken is None and not (value.is_text and isinstance(parent, exp.Func)):
                    yield from self._refused(value, "single")

    def _refused(self, value: _Value, use: StructuredUse) -> Iterator[StructuredPlace]:
        yield StructuredPlace(value.parameter, use, value.direct)

    def _is_assignment(self, node: Any) -> bool:
        exp = self._exp
        return node.arg_key == "expressions" and isinstance(node.parent, exp.Update | exp.OnConflict)

    def _leave(
        self, query: Any, names: frozenset[str], position: int | None, value: _Value
    ) -> Iterator[StructuredPlace]:
        """The uses of a column of the rows of a query. ``position`` is None if it is among those of a star."""
        exp, parent = self._exp, query.parent
        match parent:
            case None | exp.Insert():
                return
            case exp.Union():
                first = parent
                while isinstance(first, exp.SetOperation | exp.Subquery):
                    first = first.this
                if position is not None and isinstance(first, exp.Select) and position < len(first.expressions):
                    names |= {first.expressions[position].alias_or_name.lower()}
                yield from self._leave(parent, names, position, value)
            case exp.SetOperation():
                yield from self._refused(value, "compared")
            case exp.Subquery() if isinstance(parent.parent, exp.SetOperation | exp.Insert | exp.CTE | exp.Subquery):
                yield from self._leave(parent, names, position, value)
            case exp.CTE() | exp.Lateral():
                yield from self._of_relation(parent, names, position, value)
            case exp.From() | exp.Join() | exp.Merge():
                yield from self._of_relation(query, names, position, value)
            case exp.Subquery() if isinstance(parent.parent, exp.From | exp.Join | exp.Merge):
                yield from self._of_relation(parent, names, position, value)
            case exp.Subquery() if isinstance(parent.parent, exp.Lateral):
                yield from self._of_relation(parent.parent, names, position, value)
            case _:
                yield from self._uses(query, replace(value, direct=False))

    def _of_relation(
        self, relation: Any, names: frozenset[str], position: int | None, value: _Value
    ) -> Iterator[StructuredPlace]:
        """The uses of a column of a derived table or a common table expression, found by the names of both."""
        exp = self._exp
        if id(relation) in value.visited:
            return
        value = replace(value, direct=False, visited=value.visited | {id(relation)})
        aliases = {relation.alias.lower()}
        relations = [relation]
        if isinstance(relation, exp.CTE):
            relations += [table for table in self._tree.find_all(exp.Table) if table.name.lower() in aliases]
            aliases |= {table.alias_or_name.lower() for table in relations[1:]}
        for each in relations:
            alias = each.args.get("alias")
            columns = alias.columns if isinstance(alias, exp.TableAlias) else ()
            if columns and position is None:
                yield from self._refused(value, "single")
            elif columns and position is not None and position < len(columns):
                names |= {columns[position].name.lower()}
        for column in self._tree.find_all(exp.Column):
            owner, name = column.table.lower(), column.name.lower()
            if isinstance(column.this, exp.Star):
                if owner in aliases and not isinstance(column.parent, exp.Select):
                    yield from self._uses(column, value)
            elif (name in names and owner in (*aliases, "")) or (not owner and name in aliases):
                yield from self._uses(column, value)
        for join in self._tree.find_all(exp.Join):
            common = {column.name.lower() for column in join.args.get("using") or ()}
            if common & names or join.method == "NATURAL":
                yield from self._refused(value, "compared")
        for select in self._tree.find_all(exp.Select):
            own = self._relations(select)
            if self._has_star_of(select, own, aliases):
                is_alone = len(own) == 1 and len(select.expressions) == 1
                yield from self._leave(select, names, position if is_alone else None, value)

    def _relations(self, select: Any) -> Sequence[Any]:
        from_ = select.args.get("from_")
        return [*([from_.this] if from_ else ()), *(join.this for join in select.args.get("joins") or ())]

    def _has_star_of(self, select: Any, own: Sequence[Any], aliases: set[str]) -> bool:
        exp = self._exp
        is_own = any(each.alias_or_name.lower() in aliases for each in own)
        return any(
            (isinstance(each, exp.Star) and is_own)
            or (isinstance(each, exp.Column) and isinstance(each.this, exp.Star) and each.table.lower() in aliases)
            for each in select.expressions
        )


def _numbered(position: int) -> frozenset[str]:
    """The names of a column of VALUES without names."""
    return frozenset([f"column{position + 1}", f"column_{position}"])


def _unread(statement: ParsedSql) -> Iterator[StructuredPlace]:
    """The parameters of a statement that the parser does not understand, except values of columns and of a cast."""
    tokens = list(statement.significant())
    words = [statement.text_of(token).lower() for token in tokens]
    clauses: list[str] = [""]
    for at, (token, word) in enumerate(zip(tokens, words, strict=True)):
        before, following = words[at - 1 : at], (words[at + 1 : at + 2] or [""])[0]
        if token.kind == "open":
            is_row = clauses[-1] == "values" and before in (["values"], [","], ["row"])
            clauses.append("row" if is_row else "in" if before == ["in"] else "(")
        elif token.kind == "close" and len(clauses) > 1:
            clauses.pop()
        elif word in ("values", "set", "where", "on", "having", "select", "when", "from"):
            clauses[-1] = word
        elif token.kind == "parameter":
            is_column = clauses[-1] == "row" or (clauses == ["set"] and before == ["="])
            is_value = is_column and following in (")", ",", "", "where")
            if not is_value and not _is_read(words, at, statement.dialect):
                yield StructuredPlace(word[1:], "element" if clauses[-1] == "in" else "single")


def _is_read(words: Sequence[str], at: int, dialect: str) -> bool:
    """Return whether a parameter is cast to JSON or an array, or the document of a function."""
    cast = words[at + 2 :] if words[at + 1 : at + 2] == ["::"] else ()
    if words[max(at - 2, 0) : at] == ["cast", "("] and words[at + 1 : at + 2] == ["as"]:
        cast = words[at + 2 :]
    if cast:
        return cast[0] in ("json", "jsonb") or "[" in cast[1:2]
    return words[at - 1 : at] == ["("] and at > 1 and taken_by_name(words[at - 2], 0, dialect) is not None


def instead_of_structured(parameter: str, use: StructuredUse, dialect: str) -> str:
    """The advice for a list or an object at a place that takes none."""
    name = f":{parameter}"
    match dialect, use:
        case "postgresql", "element":
            return f"write `= any({name})` for `in ({name})`"
        case "postgresql", "array":
            return "give a list whose items have one type"
        case "postgresql", _:
            return f"write `= any({name})` for its items, or a cast such as `{name}::jsonb`"
        case "sqlite", "element":
            return f"write `in (select value from json_each({name}))`"  # noqa: S608 - shown, not run
        case "sqlite", _:
            return f"take its values out with json_extract({name}, '$…') or json_each({name}), or write `json({name})`"
        case _, "element":
            table = f"json_table({name}, '$[*]' columns (v bigint path '$')) j"
            return f"write `in (select v from {table})` with the type of your values"  # noqa: S608 - shown, not run
        case "mysql", _:
            own = f"cast({name} as json)"
        case _:
            own = f"json_compact({name})"
    return f"take its values out with json_value({name}, '$…') or json_table({name}, …), or write `{own}`"
