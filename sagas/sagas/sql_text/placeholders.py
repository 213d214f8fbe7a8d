"""The placeholders of one statement, each of which can have a name of its own, and so a value of its own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

from sagas.sql_text.parsed import ParsedSql, parse_sql


@lru_cache(maxsize=4096)
def placeholder_names(statement: ParsedSql) -> tuple[str, ...]:
    """The parameter of each placeholder, in the order of the text."""
    return tuple(statement.pieces()[1::2])


def renamed(statement: ParsedSql, names: Sequence[str]) -> ParsedSql:
    """The statement with one of these names at each placeholder."""
    pieces = statement.pieces()
    pieces[1::2] = [f":{name}" for name in names]
    return parse_sql("".join(pieces), statement.dialect)


@lru_cache(maxsize=1024)
def numbered(statement: ParsedSql) -> ParsedSql:
    """The statement with the parameters `saga_place_0`, `saga_place_1`, …"""
    return renamed(statement, [f"saga_place_{at}" for at in range(len(placeholder_names(statement)))])


def place_of(parameter: str) -> int:
    """The place of a parameter of :func:`numbered`."""
    return int(parameter.removeprefix("saga_place_"))


@lru_cache(maxsize=1024)
def with_own_names(statement: ParsedSql, parameters: frozenset[str]) -> tuple[ParsedSql, tuple[str, ...]]:
    """The statement in which each placeholder of these parameters has its own name, and the names of all."""
    used: set[str] = set(statement.parameters)
    names: list[str] = []
    for name in placeholder_names(statement):
        own = _unused(name, used) if name in parameters else name
        used.add(own)
        names.append(own)
    return renamed(statement, names), tuple(names)


def _unused(name: str, used: Collection[str]) -> str:
    number = 1
    while f"{name}_{number}" in used:
        number += 1
    return f"{name}_{number}"
