"""Finds the parameters whose types PostgreSQL learns only when a statement runs, where an error depends on them.

A driver sends a number with its type, and PREPARE does not know it: in ``with w as (select :n as n) … free - w.n`` it
takes ``:n`` for a text. So a refused statement is prepared again with other types for each parameter in turn: an error
that stays the same with some of them does not depend on the parameter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.tokens import INSIGNIFICANT, Token

DEPENDS_ON_TYPES = frozenset(
    {
        "22007",  # invalid_datetime_format: of a literal that gets the type of a parameter
        "22P02",  # invalid_text_representation
        "42725",  # ambiguous_function
        "42804",  # datatype_mismatch
        "42809",  # wrong_object_type: ANY of what is no array
        "42846",  # cannot_coerce
        "42883",  # undefined_function, also an operator
        "42P08",  # ambiguous_parameter
        "42P18",  # indeterminate_datatype
    }
)

_TYPES = (
    "varchar",
    "integer",
    "numeric",
    "boolean",
    "date",
    "timestamptz",
    "uuid",
    "jsonb",
    "bytea",
    "text[]",
    "int[]",
)
"""The types that are tried for a parameter. Not ``text``, which PostgreSQL takes for a type that it does not know."""

Types = Mapping[str, str]
"""The type of some parameters, by name."""

Prepare = Callable[[Types], Awaitable[Any | None]]
"""Prepares the statement with these types; gives the error of the driver, if any."""


@dataclass(frozen=True, slots=True)
class OpenTypes:
    """Parameters that decide about an error by their type. With ``types`` there is none; None if no such were found."""

    parameters: tuple[str, ...]
    types: Types | None

    @property
    def why(self) -> str:
        """Why the statement is not checked, and what to do."""
        names = ", ".join(f"`:{name}`" for name in self.parameters)
        many = len(self.parameters) > 1
        types, verb, them = ("types", "are", "them") if many else ("type", "is", "it")
        cast = f"cast {them} (`:{self.parameters[0]}::int`)"
        return f"the {types} of {names} {verb} only known when it runs; {cast}"


async def open_types(parsed: ParsedSql, error: Any, prepare: Prepare) -> OpenTypes | None:
    """The parameters on whose types ``error`` depends; None if it does not depend on any."""
    if error.sqlstate not in DEPENDS_ON_TYPES:
        return None
    names = [name for name in uncast(parsed) if await _depends(name, error, prepare)]
    if not names:
        return None
    for type in _TYPES:
        types = dict.fromkeys(names, type)
        if await prepare(types) is None:
            return OpenTypes(tuple(names), types)
    return OpenTypes(tuple(names), None)


async def _depends(name: str, error: Any, prepare: Prepare) -> bool:
    for type in _TYPES:
        other = await prepare({name: type})
        if other is not None and _identity(other) == _identity(error):
            return False
    return True


def _identity(error: Any) -> tuple[Any, ...]:
    return error.sqlstate, error.diag.message_primary


def uncast(parsed: ParsedSql) -> list[str]:
    """The parameters that no place of the statement casts: a cast gives the type to all places."""
    tokens = [token for token in parsed.tokens if token.kind not in INSIGNIFICANT]
    cast: set[str] = set()
    for index, token in enumerate(tokens):
        if token.kind == "parameter" and _is_cast(parsed, tokens, index):
            cast.add(parsed.text_of(token)[1:])
    return [name for name in parsed.parameters if name not in cast]


def _is_cast(parsed: ParsedSql, tokens: Sequence[Token], index: int) -> bool:
    following = tokens[index + 1] if index + 1 < len(tokens) else None
    if following is None:
        return False
    if following.kind == "cast":
        return True
    before = [parsed.text_of(token).lower() for token in tokens[max(index - 2, 0) : index]]
    return before == ["cast", "("] and parsed.text_of(following).lower() == "as"
