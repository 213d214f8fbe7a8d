"""Finds which places of a parameter need parameters of their own, as PostgreSQL gives each a single type. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from sagas.sql_text.parameters.assigned_parameters import assigned_parameters
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import cast_types, numbered, place_of, placeholder_names, with_own_names
from sagas.sql_text.syntax_trees import parse_trees
from sagas.sql_text.written_tables import plain_statement

_AFTER_GROUPING = ("expressions", "distinct", "group", "having", "windows", "qualify", "order")
"""The clauses of a query whose expressions PostgreSQL compares with each other, by sqlglot's names."""


@lru_cache(maxsize=1024)
def places_apart(statement: ParsedSql) -> tuple[int, ...]:
    """The group of each place: places of one parameter that are in different groups have to be different parameters.

    Empty if there is one group alone. A place that is seen to reach a column is a group, because PostgreSQL would give
    it the type of another place. A query with GROUP BY or DISTINCT takes two expressions for the same only if their
    parameters are the same, so the places of a parameter in its clauses are one group. `:v is null` has no type, and
    joins a place with a cast.
    """
    names, apart = placeholder_names(statement), numbered(statement)
    targets = assigned_parameters(apart.source, statement.dialect)
    assigned = {place_of(target.parameter) for target in targets if target.certain}
    assigned = {at for at in assigned if names.count(names[at]) > 1}
    if not assigned:
        return ()
    # An analysis of targets that is certain has parsed the statement.
    trees = parse_trees(plain_statement(apart), apart.dialect)
    comparing, typeless = _in_comparing_queries(trees, names), _typeless(trees)
    together = {(comparing[at], names[at]) for at in assigned & comparing.keys()}
    groups = [at + 1 if at in assigned else 0 for at in range(len(names))]
    for at, query in comparing.items():
        if (query, names[at]) in together:
            groups[at] = len(names) + 1 + query
    casts = cast_types(statement)
    for at in typeless:
        others = [other for other, name in enumerate(names) if name == names[at] and other not in typeless]
        if groups[at] == 0 and all(groups[other] for other in others):
            groups[at] = next((groups[other] for other in others if casts[other]), 0)
    return tuple(groups) if len({*zip(names, groups, strict=True)}) > len({*names}) else ()


def own_parameters(
    names: Sequence[str], apart: Sequence[int], is_same: Callable[[int, int], bool] = lambda at, other: True
) -> tuple[int, ...]:
    """The number of the parameter of each place among those of its name, as `with_own_names` takes them.

    ``is_same`` compares the values of two places of one name and group.
    """
    by_name: dict[str, list[int]] = {}
    numbers: list[int] = []
    for at, name in enumerate(names):
        firsts = by_name.setdefault(name, [])
        same = (
            number
            for number, first in enumerate(firsts)
            if not (apart and apart[at] != apart[first]) and is_same(at, first)
        )
        if (number := next(same, None)) is None:
            number = len(firsts)
            firsts.append(at)
        numbers.append(number)
    return tuple(numbers)


def with_places_apart(statement: ParsedSql) -> ParsedSql:
    """The statement as a run sends it to PostgreSQL if its parameters are text."""
    numbers = own_parameters(placeholder_names(statement), places_apart(statement))
    return with_own_names(statement, numbers)[0] if any(numbers) else statement


def _typeless(trees: Sequence[Any]) -> set[int]:
    from sqlglot import exp

    tests = (test for tree in trees for test in tree.find_all(exp.Is) if isinstance(test.expression, exp.Null))
    return {place_of(operand.name) for test in tests if isinstance(operand := test.this.unnest(), exp.Placeholder)}


def _in_comparing_queries(trees: Sequence[Any], names: Sequence[str]) -> dict[int, int]:
    """The places in queries that compare expressions, with the number of the outermost of these queries."""
    from sqlglot import exp

    queries: list[Any] = []
    numbers: dict[int, int] = {}
    constants: set[int] = set()
    compared: set[tuple[int, str]] = set()
    for placeholder in (node for tree in trees for node in tree.find_all(exp.Placeholder)):
        place = place_of(placeholder.name)
        for query, clause in _clauses(placeholder):
            number = next((at for at, each in enumerate(queries) if each is query), len(queries))
            queries += [query] if number == len(queries) else []
            numbers[place] = number
            if clause.arg_key != "expressions" and query.args.get("distinct"):
                compared.add((number, names[place]))
            if clause.arg_key == "expressions" and clause.find(exp.Column, exp.Query) is None:
                constants.add(place)  # it can be selected with any group
            else:
                constants.discard(place)
    return {at: number for at, number in numbers.items() if at not in constants or (number, names[at]) in compared}


def _clauses(placeholder: Any) -> Iterator[tuple[Any, Any]]:
    """The comparing queries around a placeholder, from the innermost, each with the clause or selected item."""
    from sqlglot import exp

    node = placeholder
    while (query := node.parent) is not None:
        if isinstance(query, exp.Select) and node.arg_key in _AFTER_GROUPING:
            is_distinct = any(each.find(exp.Distinct) for each in query.expressions)  # of an aggregate
            if is_distinct or query.args.get("group") or query.args.get("distinct"):
                yield query, node
        node = query
