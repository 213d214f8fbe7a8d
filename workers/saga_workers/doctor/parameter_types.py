"""Finds types of parameters with which PostgreSQL prepares a statement that it refuses without any.

A driver sends a number with its type, and PREPARE does not know it: in ``with w as (select :n as n) … free - w.n`` it
takes ``:n`` for a text. So a refused statement is prepared again with each type that a step may send: an error for
which no type helps is certain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.tokens import INSIGNIFICANT, SqlToken

DEPENDS_ON_TYPES = frozenset(
    {
        "22007",  # invalid_datetime_format: of a literal that gets the type of a parameter
        "22P02",  # invalid_text_representation
        "42725",  # ambiguous_function
        "42804",  # datatype_mismatch
        "42809",  # wrong_object_type: ANY of what is not an array
        "42846",  # cannot_coerce
        "42883",  # undefined_function, also an operator
        "42P08",  # ambiguous_parameter
        "42P18",  # indeterminate_datatype
    }
)

_SENT = ("bigint", "numeric", "boolean", "text[]", "bigint[]", "numeric[]", "boolean[]", "integer", "integer[]")
"""The types with which the values of a step are sent; text, objects and null are sent without one."""

_CAST = ("text", "date", "timestamptz", "time", "interval", "uuid", "json", "jsonb", "bytea")
"""Further types to which a statement may cast a parameter."""

_MAX_ATTEMPTS = 300
_MAX_SHOWN = 2

Types = Mapping[str, str]
"""The type of some parameters, by name."""


@dataclass(frozen=True, slots=True)
class RefusedAttempt:
    """An error of the driver, and the offset in the author's text that it names.

    ``names`` are the author's, in the order of the numbers of parameters in its message.
    """

    error: Any
    offset: int | None
    names: tuple[str, ...]

    @property
    def code(self) -> str:
        return self.error.sqlstate or ""

    def is_same(self, other: RefusedAttempt) -> bool:
        """Return whether both refuse the same place for the same reason; the words have the types."""
        return (self.code, self.offset) == (other.code, other.offset)


Prepare = Callable[[Types], Awaitable[RefusedAttempt | None]]
"""Prepares the statement with these types; gives the database's error, if any."""


@dataclass(frozen=True, slots=True)
class PossibleTypes:
    """Types with which the statement can be prepared. ``types`` is None if the values of a step never have such types.

    ``casts`` are texts to write, ``parameters`` those that they are for.
    """

    parameters: tuple[str, ...]
    types: Types | None
    casts: tuple[str, ...]

    @property
    def advice(self) -> str:
        """The casts to write."""
        them, between = ("them", " and ") if len(self.parameters) > 1 else ("it", " or ")
        return f"cast {them} ({between.join(f'`{cast}`' for cast in self.casts)})"

    @property
    def why(self) -> str:
        """Why the statement is not checked, and what to do."""
        names = ", ".join(f"`:{name}`" for name in self.parameters)
        types, verb = ("types", "are") if len(self.parameters) > 1 else ("type", "is")
        return f"the {types} of {names} {verb} only known when it runs; {self.advice}"


async def possible_types(parsed: ParsedSql, refused: RefusedAttempt, prepare: Prepare) -> PossibleTypes | None:
    """Types of parameters with which the statement can be prepared; None if its error is certain."""
    names = uncast(parsed)
    if refused.code not in DEPENDS_ON_TYPES or not names:
        return None
    search = _TypeSearch(names, prepare)
    if (types := await search.types({}, refused)) is not None:
        casts = [f":{name}::{type}" for name, type in types.items()]
        if len(types) == 1:
            ((name, first),) = types.items()
            others = await search.working(name, [type for type in ("text", *_SENT, *_CAST) if type != first])
            casts = [*casts, *(f":{name}::{type}" for type in others)][:_MAX_SHOWN]
        return PossibleTypes(tuple(types), types, tuple(casts))
    for name in names:
        if casts := await search.working(name, _CAST):
            return PossibleTypes((name,), None, tuple(f":{name}::{type}" for type in casts))
    return None


class _TypeSearch:
    """Attempts with types for some parameters, each made once."""

    def __init__(self, names: Sequence[str], prepare: Prepare) -> None:
        self._names = names
        self._prepare = prepare
        self._results: dict[frozenset[tuple[str, str]], RefusedAttempt | None] = {}

    async def types(self, types: Types, refused: RefusedAttempt) -> Types | None:
        """More types with which there is no error. A type that only changes the error leads to the next parameter."""
        further: list[tuple[Types, RefusedAttempt]] = []
        for name in self._names:
            for type in _SENT if name not in types else ():
                if len(self._results) >= _MAX_ATTEMPTS:
                    return None
                more = {**types, name: type}
                other = await self._attempt(more)
                if other is None:
                    return more
                if not other.is_same(refused) and not any(other.is_same(each) for _, each in further):
                    further.append((more, other))
        for more, other in further:
            if (result := await self.types(more, other)) is not None:
                return result
        return None

    async def working(self, name: str, types: Sequence[str]) -> list[str]:
        """The types with which this parameter alone causes no error; at most as many as are shown."""
        result: list[str] = []
        for type in types:
            if len(result) < _MAX_SHOWN and await self._attempt({name: type}) is None:
                result.append(type)
        return result

    async def _attempt(self, types: Types) -> RefusedAttempt | None:
        key = frozenset(types.items())
        if key not in self._results:
            self._results[key] = await self._prepare(types)
        return self._results[key]


def uncast(parsed: ParsedSql) -> list[str]:
    """The parameters that no place of the statement casts: a cast gives the type to all places."""
    tokens = [token for token in parsed.tokens if token.kind not in INSIGNIFICANT]
    cast: set[str] = set()
    for index, token in enumerate(tokens):
        if token.kind == "parameter" and is_cast(parsed, tokens, index):
            cast.add(parsed.text_of(token)[1:])
    return [name for name in parsed.parameters if name not in cast]


def is_cast(parsed: ParsedSql, tokens: Sequence[SqlToken], index: int) -> bool:
    """Return whether the placeholder at ``index`` has a cast."""
    following = tokens[index + 1] if index + 1 < len(tokens) else None
    if following is None:
        return False
    if following.kind == "cast":
        return True
    before = [parsed.text_of(token).lower() for token in tokens[max(index - 2, 0) : index]]
    return before == ["cast", "("] and parsed.text_of(following).lower() == "as"
