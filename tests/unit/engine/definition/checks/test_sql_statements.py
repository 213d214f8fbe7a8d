"""Statements that a step may run: one row per trick."""

from __future__ import annotations

import pytest

from sagas.sql_text.sql_statements import parse_guarded
from sagas.sql_text.tokens import RefusedStatement

ALLOWED = [
    ("postgresql", "select 1", "select 1"),
    ("postgresql", "  -- a comment: with a colon\nupdate t set a = :a", None),
    ("postgresql", "with moved as (delete from t returning *) insert into u select * from moved", None),
    ("postgresql", "select ';' as semicolon", "select ';' as semicolon"),
    ("postgresql", "select $$commit; begin$$", "select $$commit; begin$$"),
    ("postgresql", "select $tag$ $$ ; $tag$", None),
    ("postgresql", "select 1;", "select 1"),
    ("postgresql", "select 1 ; -- the end\n", None),
    ("postgresql", "update t set a = 1 where sku = 'book' -- the book's price", None),
    ("mysql", "delete from t where a = 1 # what is unused, and what is old", None),
    ("sqlite", "insert into t values (1) -- on the shelf: 10:30, set by hand", None),
    ("postgresql", "select /* /* nested ; */ ; */ 1", None),
    (
        "postgresql",
        "select a::text, '{\"k\":1}' from t where b = :b",
        "select a::text, '{\"k\":1}' from t where b = :b",
    ),
    ("postgresql", r"select E'it\'s; fine'", None),
    ("postgresql", r"select 'back\' , 1", None),
    ("postgresql", "insert into commit_log values (1)", None),
    ("postgresql", "call settle(:id)", None),
    ("mysql", "select 1 # ; drop table t\n", None),
    ("mysql", r"select 'it\'s; fine'", None),
    ("mysql", "select 5--1", None),
    ("mysql", "replace into t values (1)", None),
    ("sqlite", "insert into t values (1) on conflict do nothing", None),
]

REFUSED = [
    ("postgresql", "commit", "COMMIT"),
    ("postgresql", "/* hidden */ ROLLBACK", "ROLLBACK"),
    ("postgresql", "-- hidden\nsavepoint a", "SAVEPOINT"),
    ("postgresql", "begin", "BEGIN"),
    ("postgresql", "prepare transaction 'x'", "PREPARE"),
    ("postgresql", "set transaction isolation level serializable", "SET"),
    ("postgresql", "create table t (a int)", "CREATE"),
    ("postgresql", "truncate t", "TRUNCATE"),
    ("postgresql", "do $$ begin commit; end $$", "DO"),
    ("postgresql", "select * into copy from t", "INTO"),
    ("postgresql", "select 1; select 2", "several"),
    ("postgresql", "select 1; commit", "several"),
    ("postgresql", "select 'a''; commit", "not closed"),
    ("postgresql", "select 'back\\'; commit; --'\n", "several"),
    ("postgresql", "select $$ unfinished", "not closed"),
    ("postgresql", "select /* unfinished", "not closed"),
    ("postgresql", "", "empty"),
    ("postgresql", " ; ", "empty"),
    ("mysql", "/*! commit */", "executable comment"),
    ("mysql", "/*M!100100 drop table t */", "executable comment"),
    ("mysql", "start transaction", "START"),
    ("mysql", "call settle(1)", "CALL"),
    ("mysql", "lock tables t write", "LOCK"),
    ("mysql", "xa begin 'x'", "XA"),
    ("mysql", "select 1 -- x\n; commit", "several"),
    ("mysql", "delete from t # old ones where a in (1, 2)", "takes the rest"),
    ("postgresql", "update t set a = 1 where b = 2 -- first and c = 3", "takes the rest"),
    ("sqlite", "delete from t -- of :sku", "takes the rest"),
    ("postgresql", "delete from t -- old where active", "takes the rest"),
    ("postgresql", "delete from t where a = 1 -- old and active", "takes the rest"),
    ("postgresql", "update t set a = 1 where b = 2 -- first or (c)", "takes the rest"),
    ("postgresql", "delete from t where a = 1 -- old AND b is not null", "takes the rest"),
    ("mysql", "delete from t -- last order by a limit 1", "takes the rest"),
    ("sqlite", "pragma journal_mode = delete", "PRAGMA"),
    ("sqlite", "attach 'other.db' as other", "ATTACH"),
]


@pytest.mark.parametrize(("dialect", "statement", "text"), ALLOWED)
def test_allowed(dialect: str, statement: str, text: str | None) -> None:
    ready = parse_guarded(statement, dialect)  # raises when it is refused
    assert text is None or ready.render("named").text == text


@pytest.mark.parametrize(("dialect", "statement", "message"), REFUSED)
def test_refused(dialect: str, statement: str, message: str) -> None:
    with pytest.raises(RefusedStatement) as refusal:
        parse_guarded(statement, dialect)
    assert message in str(refusal.value)
