"""The calls of functions around each placeholder of a statement, found by its words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.tokens import SqlToken

NO_FUNCTIONS = frozenset([
    "all", "and", "any", "as", "between", "by", "case", "conflict", "distinct", "else", "except", "exists",
    "filter", "from", "group", "having", "ilike", "in", "intersect", "into", "is", "lateral", "like", "limit",
    "materialized", "not", "offset", "on", "only", "or", "order", "over", "recursive", "returning", "row",
    "select", "set", "similar", "some", "then", "union", "using", "values", "when", "where", "with",
])  # fmt: skip
"""Words that may stand before a parenthesis and are not functions."""


@dataclass(frozen=True, slots=True)
class EnclosingCall:
    """A call with a placeholder in its argument ``position``, from 0; ``direct``: the placeholder is the argument.

    ``name`` is as the database keeps it: in lower case, unless it is in quotes.
    """

    name: str
    schema: str | None
    position: int
    direct: bool


@lru_cache(maxsize=4096)
def enclosing_calls(statement: ParsedSql) -> tuple[tuple[EnclosingCall, ...], ...]:
    """The calls around each placeholder, in the order of the text, the innermost first."""
    tokens = list(statement.significant())
    words = [statement.text_of(token) for token in tokens]
    opened: list[tuple[int, int]] = []
    """The index of each open parenthesis or bracket, and the number of commas in it."""
    places: list[tuple[EnclosingCall, ...]] = []
    for at, token in enumerate(tokens):
        if token.kind == "open":
            opened.append((at, 0))
        elif token.kind == "close" and opened:
            opened.pop()
        elif words[at] == "," and opened:
            opened[-1] = (opened[-1][0], opened[-1][1] + 1)
        elif token.kind == "parameter":
            is_argument = words[at - 1 : at] in (["("], [","]) and words[at + 1 : at + 2] in ([")"], [","])
            calls = [
                _call(tokens, words, start, position, direct=is_argument and depth == 0)
                for depth, (start, position) in enumerate(reversed(opened))
            ]
            places.append(tuple(call for call in calls if call is not None))
    return tuple(places)


@lru_cache(maxsize=4096)
def called_functions(statement: ParsedSql) -> frozenset[tuple[str | None, str]]:
    """Schema and name of everything that looks like the call of a function."""
    tokens = list(statement.significant())
    words = [statement.text_of(token) for token in tokens]
    calls: set[tuple[str | None, str]] = set()
    for at, token in enumerate(tokens):
        call = _call(tokens, words, at, 0, direct=False) if token.kind == "open" else None
        if call is not None:
            before = at - 2 if call.schema is None else at - 4
            # A table with its columns, or the name of a derived table with its columns.
            is_table = before >= 0 and (words[before].lower() in ("into", "as") or tokens[before].kind == "close")
            if not is_table:
                calls.add((call.schema, call.name))
    return frozenset(calls)


def _call(
    tokens: Sequence[SqlToken], words: Sequence[str], start: int, position: int, *, direct: bool
) -> EnclosingCall | None:
    is_named = start > 0 and words[start] == "(" and tokens[start - 1].kind in ("word", "name")
    if not is_named or words[start - 1].lower() in NO_FUNCTIONS:
        return None
    has_schema = start > 2 and words[start - 2] == "." and tokens[start - 3].kind in ("word", "name")
    schema = _stored(tokens[start - 3], words[start - 3]) if has_schema else None
    return EnclosingCall(_stored(tokens[start - 1], words[start - 1]), schema, position, direct)


def _stored(token: SqlToken, word: str) -> str:
    return word[1:-1].replace(word[0] * 2, word[0]) if token.kind == "name" else word.lower()
