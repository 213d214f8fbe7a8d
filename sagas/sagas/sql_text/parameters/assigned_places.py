"""Finds the places of SQL at which a parameter is one of its own, as PostgreSQL gives each a single type. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from sagas.sql_text.parameters.assigned_parameters import assigned_parameters
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import numbered, place_of, placeholder_names
from sagas.sql_text.syntax_trees import parse_trees
from sagas.sql_text.written_tables import plain_statement


def assigned_places(statement: ParsedSql) -> frozenset[int]:
    """The places of parameters that are seen to reach a column and also occur elsewhere.

    Those of an expression that a query also groups or orders by are not among them: PostgreSQL takes two expressions
    for one only if they have the same parameters.
    """
    names = placeholder_names(statement)
    apart = numbered(statement)
    targets = assigned_parameters(apart.source, statement.dialect)
    places = {place_of(target.parameter) for target in targets if target.certain}
    repeated = frozenset(at for at in places if names.count(names[at]) > 1)
    return repeated - _grouped(apart, names) if repeated else repeated


def places_apart(statement: ParsedSql, places: Collection[int]) -> tuple[int, ...]:
    """The groups of places in which each of ``places`` is alone, as `with_own_names` takes them."""
    return tuple(at + 1 if at in places else 0 for at in range(len(placeholder_names(statement))))


def _grouped(apart: ParsedSql, names: tuple[str, ...]) -> frozenset[int]:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        trees = parse_trees(plain_statement(apart), apart.dialect)
    except SqlglotError:
        return frozenset()

    def text(node: Any) -> str:
        named = node.copy()
        for placeholder in list(named.find_all(exp.Placeholder)):
            placeholder.set("this", names[place_of(placeholder.name)])
        return named.sql()

    def places() -> Iterator[int]:
        for tree in trees:
            for clause in tree.find_all(exp.Group, exp.Order, exp.Distinct):
                keys = {text(key.this if isinstance(key, exp.Ordered) else key) for key in clause.expressions}
                for placeholder in clause.parent.find_all(exp.Placeholder) if clause.parent is not None else ():
                    node = placeholder
                    while node is not clause.parent and text(node) not in keys:
                        node = node.parent
                    if node is not clause.parent:
                        yield place_of(placeholder.name)

    return frozenset(places())
