"""Analysis of a statement: accepted forms, the parts that it cuts from the text, and refusals."""

from __future__ import annotations

import pytest

from sagas.sql_text.row_changes import NotImageable, RowChange, analyse


def test_an_update() -> None:
    text = """update "S".stock as s set free = free - :q, (a, b) = (1, lower(:x)), c = :y::numeric
      where s.sku = :sku and note <> ';) where (' and at > now() -- yesterday
    ;"""
    change = analyse(text, "postgresql")
    assert (change.kind, change.table, change.alias) == ("update", '"S".stock', "s")
    assert change.columns == ("free", "a", "b", "c")
    assert change.where == "s.sku = :sku and note <> ';) where (' and at > now()"
    assert change.statement == text[: text.index(" -- yesterday")]


def test_a_delete_of_all_rows() -> None:
    change = analyse("delete from `a b`.`order` returning `id`", "mariadb")
    assert change == RowChange(
        "delete",
        "delete from `a b`.`order` returning `id`",
        table="`a b`.`order`",
        schema_name="a b",
        table_name="order",
        returning=True,
    )


def test_keys_of_an_insert_follow_its_own_returning() -> None:
    assert analyse("insert into t (a) values (:a)", "sqlite").with_returning("id") == (
        "insert into t (a) values (:a)\nRETURNING id"
    )
    assert analyse("insert into t values (1) returning *", "sqlite").with_returning("id") == (
        "insert into t values (1) returning *\n, id"
    )


@pytest.mark.parametrize(
    ("dialect", "clause"),
    [
        ("postgresql", "on conflict (sku) do update set free = t.free + excluded.free where t.free > 0"),
        ("postgresql", "on conflict on constraint c do update set free = 1"),
        ("postgresql", "on conflict (lower(sku)) where free > 0 do update set free = (select max(x) from u)"),
        ("sqlite", "on conflict do update set free = excluded.free"),
    ],
)
def test_an_upsert(dialect: str, clause: str) -> None:
    for values in ("values (1, 2), (3, 4)", "select a, b from u where true"):
        change = analyse(f"insert into t {values} {clause} returning free", dialect)
        assert change.conflict is not None
        assert (change.conflict.updates, change.returning, change.conflict.rows) == (("free",), True, ())


def test_several_conflict_clauses_of_sqlite() -> None:
    first, last = (
        "on conflict (sku) do update set free = f(1) where t.free < 2",
        "on conflict do update set note = 'on'",
    )
    for clauses, updates in (
        (f"{first} {last}", ("free", "note")),
        (f"on conflict (a) do nothing {first}", ("free",)),
        ("on conflict (a) do nothing on conflict do nothing", None),
    ):
        statement = f"insert into t select a, b from u where true {clauses} returning free"
        change = analyse(statement, "sqlite")
        assert (change.statement, change.returning) == (statement, True)
        assert (change.conflict and change.conflict.updates) == updates
        assert ("f" in change.functions) == (first in clauses)
    with pytest.raises(NotImageable, match="cannot be analysed"):
        analyse("insert into t values (1) on conflict do nothing on conflict (a) do update", "sqlite")


@pytest.mark.parametrize("who", ["system", "USER"])
@pytest.mark.parametrize("rows", ["values (1, :v)", "select a, b from u", "values (1, 2) on conflict do nothing"])
def test_an_insert_that_overrides_an_identity(who: str, rows: str) -> None:
    statement = f"insert into t (id, v) overriding {who} value {rows} returning id"
    change = analyse(statement, "postgresql")
    assert (change.kind, change.statement, change.columns) == ("insert", statement, ("id", "v"))


def test_an_upsert_of_mariadb_is_one_for_each_row() -> None:
    clause = "on duplicate key update free = free + values(free)"
    change = analyse(f"insert into t (sku, free) values (lower(:s), f(1, (2))), ('),(', 3) {clause}", "mariadb")
    assert change.conflict is not None
    first, second = change.conflict.rows
    assert change.conflict.updates == ("free",)
    assert first.insert_only == "insert into t (sku, free) values (lower(:s), f(1, (2)))"
    assert first.upsert == f"{first.insert_only} {clause}"
    assert first.values == {"sku": "lower(:s)", "free": "f(1, (2))"}
    assert second.values == {"sku": "'),('", "free": "3"}


def test_a_merge() -> None:
    change = analyse(
        "merge into s.t as x using u on u.id = x.id when matched and u.gone then delete"
        " when matched then update set free = u.free, note = 'n' when not matched then insert values (u.id, u.free)",
        "postgresql",
    )
    assert (change.kind, change.table, change.alias, change.columns) == ("merge", "s.t", "x", ("free", "note"))


def test_do_nothing_is_an_insert() -> None:
    assert analyse("insert into t values (1), (2) on conflict do nothing", "postgresql").conflict is None


def test_a_query_without_a_table_is_an_expression() -> None:
    change = analyse("update t set a = (select :v) where b not in (select :w) returning a", "mariadb")
    assert (change.columns, change.where) == (("a",), "b not in (select :w)")


@pytest.mark.parametrize("text", ["select 1", "values (1)", "select a from t, u where t.x = u.x for update"])
def test_a_query_changes_nothing(text: str) -> None:
    assert analyse(text, "postgresql").kind == "read"


WITHOUT_CLOCK = (
    ("mariadb", "date(at) = :d and time(at) > '10:00' and unix_timestamp(at) > 0 and timediff(at, :d) > 0"),
    ("sqlite", "strftime('%Y', at) = '2026' and julianday(d) - julianday(at) > 1 and unixepoch(at) > 0"),
    ("sqlite", "datetime(at, '+1 day') < :d and date(coalesce(at, d)) = :d and timediff(at, d) > '+'"),
)


@pytest.mark.parametrize(("dialect", "where"), WITHOUT_CLOCK)
def test_functions_of_given_times_may_be_in_a_condition(dialect: str, where: str) -> None:
    assert analyse(f"delete from t where {where}", dialect).where == where


REFUSED = [
    ("postgresql", "call f()", "CALL is none of"),
    ("postgresql", "", "an empty statement"),
    ("postgresql", "update t set where", "cannot be analysed"),
    ("postgresql", "delete from t; delete from u", "not one statement"),
    ("postgresql", "with a as (delete from x returning *) select * from a", "not one plain"),
    ("postgresql", "with a as (select 1) update t set x = 1", "WITH"),
    ("postgresql", "update t set a = u.a from u where u.id = t.id", "more than one table"),
    ("postgresql", "delete from t using u where u.id = t.id", "more than one table"),
    ("postgresql", "update t set a = (select max(b) from u)", "contains a query"),
    ("postgresql", "update t set a = (select u.b from lateral (values (1)) u(b))", "contains a query"),
    ("mariadb", "delete from t where a in (table u)", "contains a query"),
    ("postgresql", "delete from t where id in (select id from u)", "contains a query"),
    ("postgresql", "update only t set a = 1", "ONLY"),
    ("postgresql", "update t set a = 1 where current of c", "CURRENT OF in UPDATE is not supported"),
    ("mariadb", "update t for portion of p from 1 to 2 set a = 1", "FOR PORTION OF in UPDATE is not supported"),
    ("mariadb", "delete from t for portion of p from 1 to 2 where a = 1", "FOR PORTION OF in DELETE"),
    ("mariadb", "update low_priority ignore t set a = 1", "IGNORE in UPDATE is not supported"),
    ("mariadb", "delete ignore from t where a = 1", "IGNORE in DELETE"),
    ("mariadb", "delete quick from t where a = 1", "QUICK in DELETE"),
    ("mariadb", "delete history from t", "HISTORY in DELETE"),
    ("sqlite", "update or replace t set a = 1", "OR REPLACE in UPDATE is not supported"),
    ("postgresql", "update t set a = 1 where random() < 0.5", "differs from call to call"),
    ("sqlite", "delete from t where at < datetime('now')", "asks for the time"),
    ("sqlite", "delete from t where date(at) < date('NOW', '-1 day')", "asks for the time"),
    ("sqlite", "delete from t where timediff(at, 'now') < '-'", "asks for the time"),
    ("sqlite", "delete from t where at < unixepoch('subsec')", "asks for the time"),
    ("sqlite", "delete from t where strftime('%Y', at) = strftime('%Y')", "asks for the time"),
    ("sqlite", "delete from t where at < julianday() and julianday(d) > 1", "asks for the time"),
    ("mariadb", "delete from t where unix_timestamp(at) < unix_timestamp()", "asks for the time"),
    ("mariadb", "delete from t where date(at) = curdate()", "asks for the time"),
    ("mariadb", "delete from t where (at < current_timestamp)", "asks for the time"),
    ("mariadb", "delete from t where at < now()", "asks for the time"),
    ("mariadb", "delete from t where at < current_timestamp", "asks for the time"),
    ("postgresql", "update t set a = setval('s', 1)", "has an effect outside"),
    ("postgresql", "select pg_advisory_lock(1)", "has an effect outside"),
    ("mariadb", "select get_lock('a', 1)", "has an effect outside"),
    ("postgresql", "select * into u from t", "not one plain"),
    ("mariadb", "update t, u set t.a = 1", "not supported"),
    ("mariadb", "update t join u on t.id = u.id set t.a = 1", "not supported"),
    ("mariadb", "delete a from t a where 1", "more than one table"),
    ("mariadb", "update t set a = 1 order by b limit 1", "not supported"),
    ("mariadb", "delete from t where a = 1 limit 3", "LIMIT"),
    ("mariadb", "insert ignore into t values (1)", "IGNORE"),
    ("mariadb", "replace into t values (1)", "REPLACE deletes every row"),
    ("sqlite", "insert or replace into t values (1)", "REPLACE deletes every row"),
    ("sqlite", "insert or ignore into t values (1)", "not supported"),
    ("sqlite", "update or ignore t set a = 1", "OR IGNORE in UPDATE is not supported"),
    ("mariadb", "update t set a = @x where b = 1", "variable"),
    ("mariadb", "insert into t values (1) on duplicate key update b = 1", "list of columns"),
    ("mariadb", "insert into t (a) select a from u on duplicate key update b = 1", "rows of VALUES"),
    ("mariadb", "insert into t (a, b) values (1) on duplicate key update b = 1", "numbers of its columns"),
    ("mariadb", "insert into t (a) values row(1), row(2) on duplicate key update a = 1", "analysed"),
    ("sqlite", "merge into t using u on t.id = u.id when matched then delete", "only PostgreSQL has MERGE"),
    ("postgresql", "merge into t using u on t.id = u.id when matched then delete returning *", "RETURNING in MERGE"),
    ("postgresql", "with a as (select 1) merge into t using a on true when matched then delete", "WITH"),
]


@pytest.mark.parametrize(
    ("dialect", "text", "why"), REFUSED, ids=[f"{refusal[0]}: {refusal[1]}" for refusal in REFUSED]
)
def test_what_is_not_understood_is_refused(dialect: str, text: str, why: str) -> None:
    with pytest.raises(NotImageable) as refused:
        analyse(text, dialect)
    assert why in refused.value.why


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb", "sqlite"])
@pytest.mark.parametrize(
    "statement",
    [
        "insert into t (a, b) values (:from, :select)",
        "update t set a = :where, b = :set where id = :case",
        "delete from t where a = :returning and b = :on",
    ],
)
def test_a_parameter_may_be_named_like_a_keyword(dialect: str, statement: str) -> None:
    change = analyse(statement, dialect)
    assert (change.statement, change.table) == (statement, "t")
    assert change.where in (None, *statement.partition(" where ")[2:])


@pytest.mark.parametrize(
    "word", ["keep", "filter", "format", "load", "settings", "view", "volatile", "xor", "contains"]
)
@pytest.mark.parametrize(
    "statement", ["update t set a = {}(b) where {}(a) > 0", "insert into t (a) values ({}(1, :b))"]
)
def test_a_function_may_be_named_like_a_word_of_another_database(word: str, statement: str) -> None:
    """The parser of SQL has keywords for all of them, or expects other arguments."""
    change = analyse(statement.format(word, word), "postgresql")
    assert (change.table, change.where) == ("t", f"{word}(a) > 0" if "where" in statement else None)
    assert word in change.functions


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        ("postgresql", "glob partitioned_by qualify regexp rlike rollback uncache xor"),
        ("mariadb", "glob ilike notnull partitioned_by qualify rollback tablesample uncache"),
        ("sqlite", "ilike lateral partitioned_by qualify revoke rlike rollback tablesample uncache xor"),
    ],
)
@pytest.mark.parametrize(
    "statement", ["update {0} set {0} = 1, b = {0} + 2 where {0} > 0", "delete from {0} where {0} = 1"]
)
def test_a_column_may_be_named_like_a_word_of_another_database(dialect: str, words: str, statement: str) -> None:
    for word in words.split():
        change = analyse(statement.format(word), dialect)
        assert (change.table_name, change.columns) == (word, (word, "b") if "set" in statement else ())


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("postgresql", "update t set a = keep(1) from keep(2)"),
        ("postgresql", "update t set a = keep(pg_advisory_lock(1))"),
        ("postgresql", "update t set a = 1 where id in (select keep(id) from u)"),
        ("mariadb", "update t partition (p0) set a = keep(1)"),
        ("mariadb", "update t, keep(b) set a = 1"),
        ("sqlite", "update or ignore t set a = keep(1)"),
    ],
)
def test_a_name_like_a_keyword_hides_nothing_that_is_refused(dialect: str, text: str) -> None:
    with pytest.raises(NotImageable):
        analyse(text, dialect)


def test_over_may_be_the_name_of_a_function() -> None:
    change = analyse("update kept set a = over(b), c = f(over(b) + over(1)) where id = :id", "postgresql")
    assert change.kind == "update"


@pytest.mark.parametrize(
    ("dialect", "statement", "instead"),
    [
        ("postgresql", "update kept set a = {}(b) where id = :id", '"{}"'),
        ("mariadb", "insert into kept (a) values (f({}(b)))", "`{}`"),
        ("sqlite", "delete from kept where a = {}(b)", '"{}"'),
    ],
)
@pytest.mark.parametrize("name", ["match", "convert", "position", "if", "overlay"])
def test_a_function_named_like_a_keyword_is_to_be_quoted(name: str, dialect: str, statement: str, instead: str) -> None:
    quoted = instead.format(name)
    with pytest.raises(NotImageable) as caught:
        analyse(statement.format(name), dialect)
    assert f"`{name}` is a keyword there, so write {quoted}(…) if a function is called so" in caught.value.why
    assert name in analyse(statement.format(quoted), dialect).functions


def test_no_function_is_blamed_for_another_mistake() -> None:
    for statement in ("insert into k (a) values (1", "update k set a = b c where d in (1, 2)"):
        with pytest.raises(NotImageable) as caught:
            analyse(statement, "postgresql")
        assert "keyword" not in caught.value.why
