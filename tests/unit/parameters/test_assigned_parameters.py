"""Parameters and the columns that they reach: the rule that decides whether a number would be rounded."""

from __future__ import annotations

import pytest

from sagas.sql_text.parameters.assigned_parameters import StarColumn, assigned_parameters

P, M, S = "postgresql", "mysql", "sqlite"


@pytest.mark.parametrize(
    ("dialect", "statement", "expected"),
    [
        (P, "insert into shop.t (a, b) values (:a, :b::numeric), (:c + 1, coalesce(:d, 0))", "a=a b=b a~c b=d"),
        (P, "insert into t values (1, :a)", "1=a"),
        (P, "insert into t select :a, x.b from x union all select :b, 2", "0=a 0=b"),
        (P, "insert into t (a) values (:a) on conflict (a) do update set b = excluded.b - :e", "a=a b~e"),
        (P, "update t set a = a - :x, (b, c) = (:b, :c) where id = :id", "a~x b=b c=c"),
        (P, "update t set a = case when :x > 1 then :y else greatest(:z, 1) end", "a=y a=z"),
        (P, "with n as (insert into t (a) values (:a) returning a) update y set b = :b", "b=b a=a"),
        (
            P,
            "merge into t using (select 1 as k) s on t.k = s.k when matched then update set a = :a"
            " when not matched then insert (k, b) values (s.k, :b)",
            "a=a b=b",
        ),
        (P, "insert into t (a, b) select v.y, v.x from (values (:x, :y)) v(x, y)", "a=y b=x"),
        (P, "with w as (select :x::numeric as x) insert into t (a) select x from w", "a=x"),
        (
            P,
            "with recursive r(n) as (select :x union all select n + 1 from r) insert into t select n from r",
            "0=x 0~x",
        ),
        (P, "update t set a = s.x from (select :x::numeric as x) s where t.k = :k", "a=x"),
        (P, "merge into t using (select :x as x) s on t.k = :k when matched then update set a = s.x", "a=x"),
        (P, "insert into t (a, b) values ((select :x), array[:y, nullif(abs(:z), 0)])", "a=x b=y b=z"),
        (P, "insert into t (a) select u.x from unnest(:xs) u(x)", "a=xs"),
        (P, "update t set a = b, b = a where k = :k", ""),
        (P, "update t set a = (select sum(q) from o where o.p > :x)", ""),
        (P, "update t set a = a * :x, b = round(:y, 2), c = cast(:z as numeric(9, 2))", ""),  # the author computes
        (P, "select * from t where a = :a", ""),
        (P, "insert into t (a) values (:a", "None?a"),  # the database says what is wrong
        (P, "insert into t (a) overriding system value values (:x)", "a=x"),
        (P, "with w(v) as (values (:x)) update t set a = w.v from w", "a=x"),
        (P, "with w as (select :id as id, :x as v) insert into t (id, a) select * from w", "id=id a=x"),
        (P, "with w as (select :id as id, :x as v) insert into t (id, a) table w", "id=id a=x"),
        (P, "insert into t (a) select s.* from (values (:x)) s", "a=x"),
        (P, "insert into t (a) select l.v from q, lateral (select :x as v) l", "a=x"),
        (P, "insert into t (id, a) select * from unnest(:ids::text[], :xs::numeric[])", "id=ids a=xs"),
        (P, "insert into t (a) select v from unnest(:xs) v", "a=xs"),
        (P, "insert into t (a) select unnest(:xs::numeric[])", "a=xs"),
        (P, "update t set (a, b) = row(:x, :y), (c, d) = (select :z, 1)", "a=x b=y c=z"),
        (P, "update t set e[:i] = :x, d.amount = :y", "e=x d=y"),
        (P, "update t set e = array_append(e, :x), d = row(:y, 1)::comp, f = f || :z", "e=x d=y f~z"),
        (P, "update t set a = :x::text, b = :y::varchar(5), c = :z::timestamp, d = :u::timestamptz", "a=x c=z d=u"),
        (P, "insert into t (a, b) select max(v), sum(w) from (values (:x, :y)) s(v, w)", "a=x b~y"),
        (P, "insert into t (a, b) select my(v), 1 from (values (:x)) s(v)", ""),
        (P, "update t set a = u.v from unnest(:ids::text[], :xs::numeric[]) u(id, v) where t.id = u.id", "a=xs"),
        (P, "insert into t (a) select mode() within group (order by v) from (values (:x)) s(v)", "a?x"),
        (P, "insert into t (a) select 1 from (values (:x, :y)) s(v, w) where v > 1 group by w", ""),
        (P, "insert into t (a) select 1 from (values (:x)) s(v) order by my(v), v + 1", ""),
        (P, "insert into t (a) select 1 from o where o.p > :x group by o.q having sum(o.r) < :y limit :z", ""),
        (P, "insert into t (a) values (1) returning a + :x", ""),
        (P, "insert into t (a, b) values (:x, cast(:y as numeric(9, 2))) returning with (old as o) o.a", "None?x"),
        (P, "update t set a = :x, b = round(:y, 2) where current of c", "None?x"),
        (P, "update t set a = :x where i = 1_000", "a=x"),
        (M, "# a comment\nupdate low_priority ignore t use index (i) set a = :x where id > :id", "a=x"),
        (M, "insert high_priority into t (a) values row(:x)", "a=x"),
        (M, "replace delayed t set a := :x", "a=x"),
        (M, "update t join (select :x as v) s set a = s.v", "a=x"),
        (M, "update t for portion of p from 1 to 2 set a = :x where b < :y", "None?x"),
        (M, "update t set a = (@v := :x)", "a=x"),
        (M, "update t set a = @v := :x", "a=x"),
        (M, "insert into t (a, b, c) values (nvl2(1, :x, 0), elt(1, :y), 1)", "a?x b?x c?x a?y b?y c?y"),
        (M, "insert into t (a) values (:x collate utf8mb4_bin)", "a=x"),
        (M, "insert into t (a) select first_value(:x) over ()", "a=x"),
        (P, 'insert into t (a) values (:x collate "C")', "a=x"),
        (P, "insert into t (a) select lag(:x, 0) over ()", "a=x"),
        (P, "insert into t (a) values (trim_scale(:x))", "a=x"),
        (S, "update or ignore t set 'a' = :x", "a=x"),
        (S, "update t set (a, b) = (select :x, 1)", "a=x"),
        (M, "insert into `t` set a = :a", "a=a"),
        (M, "replace into t (a) values (:a)", "a=a"),
        (M, "insert into t (a) values (:a) on duplicate key update a = a + :b", "a=a a~b"),
        (M, "update t join y on t.id = y.id set t.a = :a, y.b = :b", "a=a b=b"),
        (S, "insert or replace into main.t (a) values (:a)", "a=a"),
        (S, "-- a comment\nreplace into t (a) values (:a)", "a=a"),
    ],
)
def test_assigned_parameters(dialect: str, statement: str, expected: str) -> None:
    assigned = assigned_parameters(statement, dialect)
    signs = [("=" if target.alone else "~") if target.certain else "?" for target in assigned]
    shown = [f"{target.column}{sign}{target.parameter}" for sign, target in zip(signs, assigned, strict=True)]
    assert " ".join(shown) == expected


@pytest.mark.parametrize(
    ("dialect", "statement", "expected"),
    [
        (P, "insert into t (a) values (:x) on conflict (a) do update set b = excluded.a", "b<a<x"),
        (P, "insert into t (a) values (:x) on conflict (a) do update set b = t.a, c = round(excluded.a, 2)", ""),
        (P, "insert into t (a) values (:x) on conflict (a) do update set (b, c) = row(excluded.a + 1, 2)", "b<a<x"),
        (P, "insert into t values (:x, :y) on conflict (a) do update set c = excluded.b", "c<b<x c<b<y"),
        (P, "with p as (insert into t (a) values (:x) returning a as k) insert into u (b) select k from p", "b<a<x"),
        (P, "with p as (update t set a = :x returning *) insert into u (b) select p.a from p", "b<a<x"),
        (P, "with p as (update t set a = :x returning old.a as k) insert into u (b) select k from p", ""),
        (P, "with p as (update t set a = :x returning a) update u set n = (select count(*) from p where a > 1)", ""),
        (
            P,
            "with p as (update t set a = :x returning a), q as (update u set b = (select a from p) returning b)"
            " insert into w (c) select b from q",
            "c<b<x b<a<x",
        ),
        (
            P,
            "with p as (merge into t using (select 1 as k) s on t.k = s.k when matched then update set a = :x"
            " returning a) insert into u (b) select a from p",
            "b<a<x",
        ),
        (
            P,
            "with p as (update t set a = :x returning a) insert into u (b)"
            " select mode() within group (order by a) from p",
            "b<a<x a<a<x",
        ),
        (M, "insert into t (a) values (:x) on duplicate key update b = values(a), c = value(a)", "b<a<x c<a<x"),
        (M, "insert into t (a) select :x on duplicate key update b = :y, c = b + 1", "c<b<y"),
        ("mysql", "insert into t (a) values (:x) as n(v) on duplicate key update b = n.v", "b<v<x"),
        (M, "update t set a = :x, b = a, c = b", "b<a<x c<b<x"),
        (M, "update t set b = a, a = :x", ""),
        (M, "update t join u on t.i = u.i set t.b = u.a, u.a = :x", "b<a<x"),
        (M, "insert into t set a = :x, b = a", "b<a<x"),
        (M, "insert into t (b, a) values (a, :x)", ""),
        (P, "update t set a = :x, b = a", ""),
        (S, "insert into t (a) values (:x) on conflict (a) do update set b = excluded.a", "b<a<x"),
    ],
)
def test_a_column_gives_the_value_of_a_parameter_on(dialect: str, statement: str, expected: str) -> None:
    carried = [target for target in assigned_parameters(statement, dialect) if target.via is not None]
    assert not any(target.certain for target in carried)
    assert " ".join(f"{target.column}<{target.via}<{target.parameter}" for target in carried) == expected


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "with p as (delete from t where i = :i returning i, :x::numeric as k) insert into u (b) select k from p",
            "b=x",
        ),
        ("with p as (delete from t using (select :x as k) s returning k) insert into u (b) select k from p", "b=x"),
        ("with p as (insert into t (a) values (1) returning a, :x::numeric as k) select k from p", ""),
        ("with p as (insert into t (a) values (:x) returning *) select p.*, 1 from p", "a=x"),
        ("with p as (delete from t where a > :x returning *) insert into u select * from p", ""),
        ("insert into t select r.*, :x from r", "None?x"),
        ("insert into t select * from r, (select :x as v) s", "None?x"),
        ("insert into t select s.* from (values (:x), (:y)) s", "0=x 0=y"),
        ("insert into t select * from (select :x as v, 1 as w union all select 2, :y) s", "0=x 1=y"),
    ],
)
def test_what_a_statement_returns_and_all_columns_of_it(statement: str, expected: str) -> None:
    assigned = assigned_parameters(statement, P)
    assert " ".join(f"{t.column}{'=' if t.certain else '?'}{t.parameter}" for t in assigned) == expected


def test_all_columns_of_written_rows_are_those_of_their_table_in_its_order() -> None:
    run = "with p as (update t set a = :x where i = :i returning *) insert into u (b, c) select 1, p.* from p"
    (_, of_log) = sorted(assigned_parameters(run, P), key=lambda target: target.table)
    assert (of_log.table, of_log.column) == ("u", StarColumn("t", None, "t", "a", 1, ("b", "c")))
    hidden = "with p as (insert into t values (:x) returning *) insert into u select * from p"
    assert {(target.table, target.certain) for target in assigned_parameters(hidden, P)} == {
        ("t", True), ("t", False), ("u", False)
    }  # fmt: skip


def test_tables_keep_their_names() -> None:
    (target,) = assigned_parameters('insert into shop."Order Lines" as o (a) values (:a)', P)
    assert (target.table, target.schema, target.name) == ('shop."Order Lines"', "shop", "Order Lines")
    of_join = {target.parameter: target.name for target in assigned_parameters("update t, y set t.a = :a, y.b = :b", M)}
    assert of_join == {"a": "t", "b": "y"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("same(:x)", "a?x"), ("app.same(:x)", "a?x"), ("same(x => :x)", "a?x"), ("coalesce(same(:x), 0)", "a?x"),
        ("(select same(s.v) from (select :x as v) s)", "a?x"), ("(select v from same(:x) as k(v))", "a?x"),
        ("same(1, :x)", ""), ("net(:x)", ""), ("round(same(:x), 2)", ""), ("same(:x)::numeric(10, 2)", ""),
        ("same(:x * 2)", ""), ("same(:x) * 2", ""), ("same(:x::numeric(10, 2))", ""),
    ],
)  # fmt: skip
def test_a_function_of_the_author_may_give_an_argument_on(value: str, expected: str) -> None:
    passing = frozenset([("same", 0)])
    assigned = assigned_parameters(f"insert into t (b, a) values (1, {value})", P, passing)
    assert (
        " ".join(f"{target.column}{'=' if target.certain else '?'}{target.parameter}" for target in assigned)
        == expected
    )
    assert all(target.through == "same" for target in assigned)
