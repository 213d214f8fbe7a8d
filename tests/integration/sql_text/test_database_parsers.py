"""Our tokens against the parsers of the databases: the same statements, the same placeholders.

What a random statement contains is known by construction (`tests/helpers/sql_statements.py`), each database confirms it
with a text that we have not read, and our own reading must agree.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from psycopg import ClientCursor

from sagas.sql_text import tokens
from sagas.sql_text.parsed import ParsedSql, SwallowedText, parse_sql
from sagas.sql_text.tokens import INSIGNIFICANT, RefusedStatement, split_tokens
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.sampling import examples, scaled
from tests.helpers.sql_statements import Sample, hidden_condition, script, statement

DIALECTS = ("postgresql", "mysql", "sqlite")
STYLES = {"postgresql": "numeric_dollar", "mysql": "qmark", "sqlite": "qmark"}


class PostgresqlParser:
    def __init__(self, server: DatabaseServer) -> None:
        self.connection = psycopg.connect(server.url(), autocommit=True)

    def placeholders(self, sample: Sample) -> int:
        raw, text = self.connection.pgconn, sample.rendered("each")
        result = raw.prepare(b"", text.encode())
        assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, (text, result.error_message.decode())
        return raw.describe_prepared(b"").nparams

    def statements(self, text: str) -> int:
        cursor = ClientCursor(self.connection)
        cursor.execute(text)  # pyright: ignore[reportArgumentType, reportCallIssue]
        number = 1
        while cursor.nextset():
            number += 1
        return number

    def rows(self, text: str) -> int:
        return len(ClientCursor(self.connection).execute(text.encode()).fetchall())


class SqliteParser:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")

    def placeholders(self, sample: Sample) -> int:
        values = (None,) * sample.occurrences
        self.connection.execute(f"explain {sample.rendered('qmark')}", values)  # raises for another number
        return len(values)

    def statements(self, text: str) -> int:
        """SQLite only says whether something follows the first statement."""
        try:
            self.connection.execute(f"explain {text}")
        except sqlite3.ProgrammingError as error:
            if "one statement at a time" not in str(error):
                raise
            return 2
        return 1

    def rows(self, text: str) -> int:
        return len(self.connection.execute(text).fetchall())


class MariadbParser:
    def __init__(self, server: DatabaseServer) -> None:
        import asyncio

        from asyncmy import connect
        from asyncmy.constants.CLIENT import MULTI_STATEMENTS
        from sqlalchemy import make_url

        url = make_url(server.url("mysql"))
        self.loop = asyncio.new_event_loop()
        self.connection = self.loop.run_until_complete(
            connect(host=url.host, port=url.port or 0, user=url.username, client_flag=MULTI_STATEMENTS)
        )

    async def _run(self, *texts: str) -> int:
        async with self.connection.cursor() as cursor:
            number = 0
            for text in texts:
                await cursor.execute(text)
                number = 1
                while await cursor.nextset():
                    number += 1
            return number

    def placeholders(self, sample: Sample) -> int:
        """EXECUTE refuses another number of values than the prepared statement has placeholders."""
        using = f" using {', '.join(['@value'] * sample.occurrences)}" if sample.occurrences else ""
        quoted = sample.rendered("qmark").replace("\\", "\\\\").replace("'", "''")
        prepare = f"prepare p from '{quoted}'"
        self.loop.run_until_complete(self._run(prepare, f"execute p{using}"))
        return sample.occurrences

    def statements(self, text: str) -> int:
        return self.loop.run_until_complete(self._run(text))

    def rows(self, text: str) -> int:
        async def count() -> int:
            async with self.connection.cursor() as cursor:
                await cursor.execute(text)
                return len(await cursor.fetchall())

        return self.loop.run_until_complete(count())


Parser = PostgresqlParser | MariadbParser | SqliteParser


@pytest.fixture(scope="module", params=DIALECTS)
def parser(request: pytest.FixtureRequest) -> Iterator[tuple[str, Parser]]:
    dialect = request.param
    if dialect == "sqlite":
        yield dialect, SqliteParser()
    elif dialect == "postgresql":
        yield dialect, PostgresqlParser(request.getfixturevalue("postgres_server"))
    else:
        yield dialect, MariadbParser(request.getfixturevalue("mariadb_server"))


def check_placeholders(parsed: ParsedSql, sample: Sample, style: str) -> None:
    assert list(parsed.parameters) == sample.names, sample.source
    assert parsed.render(style).text == sample.rendered(style).rstrip(), sample.source


def statements_of(text: str, dialect: str) -> int:
    """The number of statements by our tokens."""
    number, begun = 0, False
    for token in split_tokens(text, dialect):
        if token.kind == "end":
            begun = False
        elif token.kind not in INSIGNIFICANT and not begun:
            number, begun = number + 1, True
    return number


def compare(dialect: str, parser: Parser, random: Random) -> None:
    sample = statement(random, dialect)
    assert parser.placeholders(sample) == sample.occurrences, sample.source
    check_placeholders(parse_sql(sample.source, dialect), sample, STYLES[dialect])
    text, number = script(random, dialect)
    assert parser.statements(text) == (min(number, 2) if dialect == "sqlite" else number), text
    assert statements_of(text, dialect) == number, text


@pytest.mark.sampled(keep=1)
def test_random_statements(parser: tuple[str, Parser]) -> None:
    dialect, database = parser

    @examples(80, 3_000, suppress_health_check=[HealthCheck.too_slow])
    @given(st.randoms(use_true_random=False))
    def check(random: Random) -> None:
        compare(dialect, database, random)

    check()


def test_a_comment_hides_what_follows_another_line_break(parser: tuple[str, Parser]) -> None:
    """A carriage return looks like the end of a line; where it does not end a comment, the text is refused."""
    dialect, database = parser
    hiding: set[bool] = set()
    for seed in range(60):
        text, hides = hidden_condition(Random(seed), dialect)
        assert database.rows(text) == (1 if hides else 0), repr(text)
        comment = next(token for token in split_tokens(text, dialect) if token.kind == "line_comment")
        assert (comment.end == len(text)) == hides, repr(text)
        hiding.add(hides)
        if not hides or "\r" not in text:
            assert len(parse_sql(text, dialect).tokens) > 0
            continue
        with pytest.raises(SwallowedText, match="only at a line feed") as refused:
            parse_sql(text, dialect)
        assert refused.value.offset == comment.start
    assert hiding == {True, False}


class _Recorder(dict[str, None]):
    """Values for every name that SQLite asks for."""

    def __missing__(self, name: str) -> None:
        self[name] = None


def test_sqlite_asks_for_the_names_that_we_read() -> None:
    """SQLite knows `:name` itself, so its own lexer is compared."""
    connection, random = sqlite3.connect(":memory:"), Random(1)
    for _ in range(scaled(100, 3_000)):
        sample, asked = statement(random, "sqlite"), _Recorder()
        connection.execute(f"explain {sample.source}", asked)
        assert sorted(asked) == sorted(parse_sql(sample.source, "sqlite").parameters), sample.source


RULES_TAKEN_OUT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "nested comments": ("postgresql", lambda rules: {"nested": False}),
    "backslashes in strings": ("mysql", lambda rules: {"escapes": False}),
    "colons of array slices": ("postgresql", lambda rules: {"colons": False}),
    "comments with #": ("mysql", lambda rules: {"pattern": _without(rules, r"\#[^\n]*|")}),
    "a blank after --": ("mysql", lambda rules: {"pattern": _without(rules, r"(?=[\x00-\x20\x7f]|\Z)")}),
    "escape strings": ("postgresql", lambda rules: {"pattern": _without(rules, r"  | (?P<escaped>[eE]')")}),
    "casts": ("postgresql", lambda rules: {"pattern": _without(rules, r"  | (?P<cast>::)")}),
    "names in brackets": ("sqlite", lambda rules: {"pattern": _without(rules, r"  | (?P<bracketed>\[)")}),
    "dollar quotes": ("postgresql", lambda rules: {"pattern": _without(rules, "dollar>", "dollar>(?!)")}),
}


def _without(rules: Any, part: str, instead: str = "") -> Any:
    import re

    assert part in rules.pattern.pattern, part
    return re.compile(rules.pattern.pattern.replace(part, instead, 1), rules.pattern.flags)


@pytest.mark.parametrize("rule", RULES_TAKEN_OUT)
def test_each_rule_that_is_taken_out_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    from dataclasses import replace

    dialect, change = RULES_TAKEN_OUT[rule]
    rules = tokens._RULES[dialect]
    changes = change(rules)
    changed = replace(rules, **{name: value for name, value in changes.items() if name != "pattern"})
    vars(changed).update(changes)  # the pattern is a cached property
    monkeypatch.setitem(tokens._RULES, dialect, changed)
    random = Random(7)
    for _ in range(500):
        sample = statement(random, dialect)
        try:
            check_placeholders(parse_sql.__wrapped__(sample.source, dialect), sample, STYLES[dialect])
        except (AssertionError, RefusedStatement):
            return
    raise AssertionError("no statement is read in another way")
