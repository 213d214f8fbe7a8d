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
def with_own_names(statement: ParsedSql, groups: tuple[int, ...]) -> tuple[ParsedSql, tuple[str, ...]]:
    """The statement in which each group of places of a parameter has its own name, and the names of all places.

    ``groups`` has the number of the group of each place among those of its parameter; group 0 keeps the name.
    """
    used: set[str] = set(statement.parameters)
    names: dict[tuple[str, int], str] = {}
    for key in zip(placeholder_names(statement), groups, strict=True):
        if key not in names:
            names[key] = _unused(key[0], used) if key[1] else key[0]
            used.add(names[key])
    of_places = tuple(names[key] for key in zip(placeholder_names(statement), groups, strict=True))
    return renamed(statement, of_places), of_places


def _unused(name: str, used: Collection[str]) -> str:
    number = 1
    while f"{name}_{number}" in used:
        number += 1
    return f"{name}_{number}"


def cast_parameters(statement: ParsedSql) -> set[str]:
    """The parameters to which the author has written a cast at one place or more."""
    return {name for name, type in zip(placeholder_names(statement), cast_types(statement), strict=True) if type}


@lru_cache(maxsize=1024)
def cast_types(statement: ParsedSql) -> tuple[str, ...]:
    """The type to which each placeholder is cast directly, in lower case and with `(` if it has a precision, or ""."""
    tokens = list(statement.significant())
    words = [statement.text_of(token).lower() for token in tokens]
    types: list[str] = []
    for at, token in enumerate(tokens):
        if token.kind == "parameter":
            is_cast = words[at + 1 : at + 2] == ["::"] or (
                words[max(at - 2, 0) : at] == ["cast", "("] and words[at + 1 : at + 2] == ["as"]
            )
            types.append("".join(words[at + 2 : at + 3 + (words[at + 3 : at + 4] == ["("])]) if is_cast else "")
    return tuple(types)
