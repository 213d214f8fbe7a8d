"""Names of databases in SQL of MySQL and MariaDB, where a statement reaches every database of its server."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from sagas.sql_text.tokens import INSIGNIFICANT, SqlToken, split_tokens
from sagas.text.sql_names import backquoted

_NAMES = """
    SELECT schema_name AS place, NULL AS name FROM information_schema.schemata
    UNION ALL SELECT table_schema, table_name FROM information_schema.tables
    UNION ALL SELECT routine_schema, routine_name FROM information_schema.routines
"""

_ONLY_READ = frozenset(("information_schema", "performance_schema"))
"""Databases of the server that no statement can write."""

_DATABASE_STATEMENTS = frozenset(("create", "drop", "alter"))


class _Qualifier(NamedTuple):
    """A name before a dot, and the name after it. ``has_more``: another dot follows."""

    token: SqlToken
    qualifier: str
    name: str
    has_more: bool


@dataclass(frozen=True, slots=True)
class ServerNames:
    """The databases of a server, with the names of the tables, views and routines of each."""

    names: Mapping[str, Collection[str]]
    ignores_case: bool

    @classmethod
    async def read(cls, session: AsyncConnection) -> ServerNames:
        """The names that the user of the session may see; the others it cannot use."""
        ignores_case = (await session.exec_driver_sql("SELECT @@lower_case_table_names")).scalar_one() != 0
        names: dict[str, set[str]] = {}
        rows: Sequence[Any] = (await session.exec_driver_sql(_NAMES)).all()
        for place, name in rows:
            of_place = names.setdefault(place.lower() if ignores_case else place, set())
            if name is not None:
                of_place.add(name.lower() if ignores_case else name)
        return cls(names, ignores_case)

    def with_copy(self, original: str, copy: str) -> ServerNames:
        """The names with those of a copy, which are the same as those of its original."""
        return ServerNames(
            {**self.names, self._folded(copy): self.names.get(self._folded(original), ())}, self.ignores_case
        )

    def moved(self, text: str, original: str, copy: str) -> str:
        """A statement of the original for the copy. Raises UnreadableSql if it cannot be split into tokens."""
        result, position = [], 0
        for each in _qualifiers(text):
            if self._folded(each.qualifier) == self._folded(original) and self._is_database(each, original):
                result += [text[position : each.token.start], backquoted(copy)]
                position = each.token.end
        return "".join((*result, text[position:]))

    def other_database(self, text: str, original: str, copy: str | None = None) -> str | None:
        """The first database in a statement that is not the copy of ``original``; None if there is none.

        A table or an alias may be called like a database: a name is that of a database if the server has it, unless
        the original has such a table and the database has nothing of the name after the dot.
        Raises UnreadableSql if the text cannot be split into tokens.
        """
        words = [text[token.start : token.end] for token in _significant(text)]
        folded = [word.lower() for word in words[:2]]
        if folded[:1] == ["use"] and len(words) > 1:
            return _unquoted(words[1])
        if folded[:1] and folded[0] in _DATABASE_STATEMENTS and folded[1:] in (["database"], ["schema"]):
            return _unquoted(words[-1])
        for each in _qualifiers(text):
            place = self._folded(each.qualifier)
            if place in _ONLY_READ or place not in self.names:
                continue
            if (copy is None or place != self._folded(copy)) and self._is_database(each, original):
                return each.qualifier
        return None

    def _is_database(self, each: _Qualifier, original: str) -> bool:
        place = self._folded(each.qualifier)
        has_name = self._folded(each.name) in self.names.get(place, ())
        return each.has_more or has_name or place not in self.names.get(self._folded(original), ())

    def _folded(self, name: str) -> str:
        return name.lower() if self.ignores_case else name


def _qualifiers(text: str) -> Iterator[_Qualifier]:
    tokens = _significant(text)
    for index, token in enumerate(tokens[:-2]):
        is_part = index > 0 and text[tokens[index - 1].start : tokens[index - 1].end] in (".", "@")
        if is_part or token.kind not in ("word", "name") or text[tokens[index + 1].start] != ".":
            continue
        after = tokens[index + 2]
        has_more = index + 3 < len(tokens) and text[tokens[index + 3].start] == "."
        qualifier, name = (_unquoted(text[each.start : each.end]) for each in (token, after))
        yield _Qualifier(token, qualifier, name, has_more)


def _significant(text: str) -> list[SqlToken]:
    """The tokens without blanks and comments, and with those inside of comments that the server runs."""
    tokens: list[SqlToken] = []
    for token in split_tokens(text, "mysql"):
        if token.kind == "executable":
            begin = token.start + text[token.start : token.end].index("!") + 1
            inner = text[begin : token.end - 2]
            tokens += [SqlToken(each.kind, each.start + begin, each.end + begin) for each in _significant(inner)]
        elif token.kind not in INSIGNIFICANT:
            tokens.append(token)
    return tokens


def _unquoted(word: str) -> str:
    return word[1:-1].replace("``", "`") if word.startswith("`") else word
