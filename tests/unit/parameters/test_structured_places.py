"""Places where a statement takes a list or an object as a parameter: the rest is refused."""

from __future__ import annotations

import pytest

from sagas.sql_text.dialects import Dialect
from sagas.sql_text.parameters.structured_parameters import structured_places
from sagas.sql_text.parsed import parse_sql

P, M, S = "postgresql", "mariadb", "sqlite"


@pytest.mark.parametrize(
    ("dialect", "statement", "refused"),
    [
        (P, "insert into t (a, b) values (:x, :y) on conflict (a) do update set b = :z returning :v", ""),
        (P, "update t set a = :x, (b, c) = (select :y, 1), tags = tags || :z where id = any(:v)", "v=array"),
        (P, "select * from jsonb_to_recordset(:x) as r(a int), unnest(:y) u where doc @> :z", "y=array"),
        (P, "select jsonb_set(doc, :x, :y), doc #> :z, doc -> :v, my(:w)", "z=array v=single w=single"),
        (P, "select :x::jsonb, :y::text[], my(:z::text), a = :v::text", "y=array v=compared"),
        (P, "select 1 where :x is null or a = any(coalesce(:y, '{}'))", "y=array"),
        (P, "select a = some(array(select :x)), a = any(select :y)", "x=single y=compared"),
        (P, "insert into t select * from (select :x as a, 1) s", ""),
        (P, "with k as (select :x as c) insert into t select c from k", ""),
        (P, "with k as (select :x as c) insert into t select * from k where k.c = 'a'", "x=compared"),
        (P, "with k as (select :x as c) delete from t where a not in (table k)", "x=element"),
        (P, "with k as (select :x as c) delete from t where a = any(select z.b from k z(b))", "x=compared"),
        (P, "select a from t except select :x", "x=compared"),
        (P, "insert into t (a) select b from (select 1 as b union all select :x) s where b > 1", "x=compared"),
        (P, "select * from t join (select :x as a) s using (a)", "x=compared"),
        (P, "update t set a = s.v from (values (:x, :y)) s(k, v) where t.k = s.k", "x=compared"),
        (
            P,
            "merge into t using (select :x as v, :y as w) s on t.k = s.v when matched then update set a = s.w"
            " when not matched then insert (a) values (:z)",
            "x=compared",
        ),
        (P, "update t set a = :x, b = my(:y) where current of c and a not in (select :z)", "y=single z=single"),
        (P, "call f(:x, :y::jsonb, jsonb_strip_nulls(:z))", "x=single"),
        (M, "insert into t set a = :x, b = nvl2(1, :y, 0)", ""),
        (M, "update t set a = @v := :x", ""),
        (M, "delete from t where a not in (values (:x)) or a <> all (select :y)", "x=single y=compared"),
        (M, "delete from t where row(a, 1) <> row(:x, 1) or strcmp(a, :y)", "x=compared y=single"),
        (M, "select json_contains(doc, :x), json_array(:y), json_set(:z, '$', :v)", "y=single v=single"),
        (M, "insert into t (a) select v from json_table(:x, '$[*]' columns (v int path '$')) j", ""),
        (M, "update t join (select :x as v, :y as w) s on t.a = s.v set t.b = s.w", "x=compared"),
        (M, "select 'a' member of (:x), :y member of (doc), cast(:z as char) = a", "y=single z=compared"),
        (M, "select if(:x, 1, 2), least(a, :y), case a when :z then 1 end", "x=computed y=compared z=compared"),
        (S, "with k(a) as (values (:x)) insert into t select a from k", ""),
        (S, "with k as (select :x as c) delete from t where a not in k", "x=element"),
        (S, "select :x -> '$', doc -> :y, json_quote(:z), value from json_each(:v)", "y=single z=single"),
        (S, "delete from t where id > cast(:x as integer) or a in (:z || '')", "x=compared z=element"),
    ],
)  # fmt: skip
def test_structured_places(dialect: Dialect, statement: str, refused: str) -> None:
    places = structured_places(parse_sql(statement, dialect))
    assert sorted(f"{place.parameter}={place.use}" for place in places) == sorted(refused.split())
