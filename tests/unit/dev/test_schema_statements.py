"""The statements of a schema file for MySQL, which takes them one by one."""

from __future__ import annotations

import pytest

from saga_workers.runtime.schema_file import split_statements
from sagas.errors import UsageError


def test_a_statement_ends_at_a_semicolon_at_the_end_of_a_line() -> None:
    text = (
        "-- the first; of two\ncreate table t (a int); -- a comment; with one\n"
        "insert into t values ('a -- b;\n'), (\"c # d;\"); # e\n/* f;\n */\n/*!40101 set @a = 1 */;\n"
        "create trigger x before insert on t for each row begin set @a = 1; set @b = 2; end;\n-- the end;\n"
    )
    split = list(split_statements(text))
    assert all(text.startswith(statement, offset) for offset, statement in split)
    assert [statement for _, statement in split] == [
        "create table t (a int)",
        "insert into t values ('a -- b;\n'), (\"c # d;\")",
        "/*!40101 set @a = 1 */",
        "create trigger x before insert on t for each row begin set @a = 1; set @b = 2; end",
    ]


def test_where_a_statement_ends_elsewhere() -> None:
    body = "create trigger x after insert on t begin update t set a = 1; delete from t; end"
    assert [statement for _, statement in split_statements(f"{body}; select 1;", "sqlite")] == [body, "select 1"]
    body = "create function f() returns int language sql as $$ select 1; $$"
    assert [statement for _, statement in split_statements(f"{body}; select 1", "postgresql")] == [body, "select 1"]
    body = "create function f() returns int begin atomic select 1; select 2; end; select 1"
    assert [statement for _, statement in split_statements(body, "postgresql")] == [body]


def test_a_string_that_is_not_closed_is_named() -> None:
    with pytest.raises(UsageError, match="a string is not closed: `'a"):
        list(split_statements("insert into t values ('a);\n"))
