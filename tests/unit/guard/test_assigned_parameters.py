"""Which parameters reach which columns: the rule that decides whether a number would be rounded."""

from __future__ import annotations

import pytest

from sagas.builtins.assigned_parameters import assigned_parameters

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
        (M, "update t set a = (@v := :x)", "a?x"),
        (M, "update t set a = @v := :x", "None?x"),
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


def test_tables_keep_their_names() -> None:
    (target,) = assigned_parameters('insert into shop."Order Lines" as o (a) values (:a)', P)
    assert (target.table, target.schema, target.name) == ('shop."Order Lines"', "shop", "Order Lines")
    of_join = {one.parameter: one.name for one in assigned_parameters("update t, y set t.a = :a, y.b = :b", M)}
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
