"""Columns of results on real databases: each value comes back as it was read, or its column is refused by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from saga_activities.bodies.sql_action import sql_body
from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, new_attempt


async def perform(database: GuardDatabase, *statements: str, **params: Any) -> Outcome:
    """The outcome of a step whose last statement has the parameters."""
    address = database.current = new_address()
    invocation = Invocation("sql", {}, str(address), address.saga_id, address.entry, "do", 1)
    run = [*({"sql": statement} for statement in statements[:-1]), {"sql": statements[-1], "params": params}]
    return await database.guard.do(address, "h", sql_body({"run": run}, invocation, new_attempt()), **clock())


async def table(database: GuardDatabase, columns: str) -> str:
    name = f"t_{uuid4().hex[:12]}"
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table {name} ({columns})")
    return name


@pytest.mark.parametrize("statement", ["select 1 as n, 2 as n", "select a.*, b.* from (select 1 n) a, (select 2 n) b"])
async def test_two_columns_of_one_name_change_nothing(guard_database: GuardDatabase, statement: str) -> None:
    insert = "insert into effects values ('{}', 'charge', 1, 'applied', 1.5)"
    saga = uuid4().hex
    outcome = await perform(guard_database, insert.format(saga), statement)
    assert outcome.failure is not None
    assert "two columns of the result are named 'n'" in outcome.failure.message
    assert not outcome.retryable
    assert await guard_database.rows("select 1 from effects where saga_id = :s", s=saga) == []
    named = await perform(guard_database, "select 1 as n, 2 as m")
    assert named.result == [{"n": 1, "m": 2}]


LENGTHS = {
    "postgres": ("interval", ["-1.5 seconds", "1 mon", "1 mon -1 days +02:00:00.000001", "1 hour", "-00:00:01.500001"]),
    "mariadb": ("time(6)", ["-00:00:01.500", "01:00:00", "838:59:59", "00:00:00.000001", "-100:00:00"]),
    "sqlite": ("text", ["-00:00:01.5"]),
}


async def test_intervals_and_times_come_back(guard_database: GuardDatabase) -> None:
    kind, values = LENGTHS[guard_database.kind]
    name = await table(guard_database, f"id int, v {kind}")
    for value in values:
        await perform(guard_database, f"delete from {name}")
        await perform(guard_database, f"insert into {name} values (1, '{value}')")
        (row,) = (await perform(guard_database, f"select v from {name}")).result
        assert isinstance(row["v"], str)
        again = await perform(guard_database, f"insert into {name} values (2, :v)", v=row["v"])
        assert again.kind == "done", again
        as_text = "cast(v as char(40))" if guard_database.kind == "mariadb" else "cast(v as text)"
        first, second = await guard_database.rows(f"select {as_text} from {name} order by id")
        assert first == second, value


async def test_values_without_a_form_in_json_are_refused_with_the_cast(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "postgres":
        pytest.skip("the others have no such types")
    values = {"numrange": "[1.10,2)", "int8multirange": "{[1,3),[5,7)}", "cidr": "10.0.0.0/8", "inet": "10.0.0.1/8"}
    name = await table(guard_database, "id int, " + ", ".join(f"c{at} {type}" for at, type in enumerate(values)))
    await perform(guard_database, f"insert into {name} values (1, {', '.join(map(repr, values.values()))})")
    for at, value in enumerate(values.values()):
        refused = await perform(guard_database, f"select c{at} from {name}")
        assert "give text, such as `v::text as v`" in str(refused.failure)
        (row,) = (await perform(guard_database, f"select c{at}::text as v from {name}")).result
        assert row["v"] == value
        again = await perform(guard_database, f"update {name} set id = 1 where c{at} = :v returning id", v=row["v"])
        assert again.result == [{"id": 1}]


async def test_an_array_with_other_positions_is_refused(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "postgres":
        pytest.skip("the others have no arrays")
    name = await table(guard_database, "id int, a int[], t text[]")
    await perform(guard_database, f"insert into {name} values (1, '[0:2]={{10,20,30}}', '{{\"[0:1]=\",b}}')")
    refused = await perform(guard_database, f"update {name} set id = 1", f"select id, a from {name}")
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert "an array in the column a begins at another position than 1, as [0:2]={10,20,30}, and" in str(
        refused.failure
    )
    for values in ("'[1:2][0:1]={{1,2},{3,4}}'::numeric[]", "array_fill(now(), array[2], array[7])"):
        assert "begins at another position" in str((await perform(guard_database, f"select {values} as a")).failure)
    (row,) = (await perform(guard_database, f"select a::text as a, t from {name}")).result
    assert row == {"a": "[0:2]={10,20,30}", "t": ["[0:1]=", "b"]}
    assert (await perform(guard_database, f"insert into {name} values (2, :a)", a=row["a"])).kind == "done"
    assert len(await guard_database.rows(f"select 1 from {name} where a[0] = 10 and a[2] = 30")) == 2
    plain = await perform(guard_database, "select array[1, null] as a, '{}'::int[] as b, '{{1,2},{3,4}}'::int[] as c")
    assert plain.result == [{"a": [1, None], "b": [], "c": [[1, 2], [3, 4]]}]


async def test_an_action_binds_a_length_that_it_has_read(guard_database: GuardDatabase) -> None:
    if guard_database.kind == "sqlite":
        pytest.skip("SQLite has no such type")
    name = await table(guard_database, f"id int, v {LENGTHS[guard_database.kind][0]}")

    async def body(sql: SqlSession) -> Any:
        await sql.execute(f"insert into {name} values (1, :v)", v=timedelta(seconds=-1.5))
        length = await sql.scalar(f"select v from {name}")
        await sql.execute(f"insert into {name} values (2, :v)", v=length)
        return length == timedelta(seconds=-1.5)

    outcome = await guard_database.guard.do(new_address(), "h", body, **clock())
    assert outcome.result is True
    texts = await guard_database.rows(f"select distinct cast(v as char(16)) from {name}")
    assert [text.strip() for (text,) in texts] == [
        "-00:00:01.500000" if guard_database.kind == "mariadb" else "-00:00:01.5"
    ]


REFUSED = {
    "postgres": [
        ("select 1 as n, '\\x61'::bytea as b", "no form for bytes", "field b"),
        ("select 1 as n, array['\\x61'::bytea] as b", "no form for bytes", "field b[0]"),
        *(
            (f"select 1 as n, {value} as b", "the driver cannot read the column b", "`b::text as b`")
            for value in ("'infinity'::date", "'0044-03-15 BC'::date", "'12000-01-01'::timestamp", "'24:00'::time")
        ),
    ],
    "mariadb": [
        ("select 1 as n, x'61' as b", "no form for bytes", "field b"),
        ("select b from (select cast(1 as float) as b) t", "the column b is a float", "`cast(b as double) as b`"),
    ],
    "sqlite": [("select 1 as n, x'61' as b", "no form for bytes", "field b")],
}


async def test_a_column_that_would_be_falsified_is_refused(guard_database: GuardDatabase) -> None:
    for statement, problem, advice in REFUSED[guard_database.kind]:
        outcome = await perform(guard_database, statement)
        assert outcome.failure is not None, statement
        assert problem in outcome.failure.message
        assert advice in outcome.failure.message
        assert not outcome.retryable, statement


async def test_bytes_come_back_by_way_of_hexadecimal_digits(guard_database: GuardDatabase) -> None:
    kind = {"postgres": "bytea", "mariadb": "varbinary(16)", "sqlite": "blob"}[guard_database.kind]
    out = "encode(v, 'hex')" if kind == "bytea" else "hex(v)"
    same = {"bytea": "v = decode(:v, 'hex')", "varbinary(16)": "v = unhex(:v)", "blob": "hex(v) = :v"}[kind]
    name = await table(guard_database, f"v {kind}")
    literal = "'\\x00ff61'" if kind == "bytea" else "x'00ff61'"
    await perform(guard_database, f"insert into {name} values ({literal})")
    (row,) = (await perform(guard_database, f"select {out} as v from {name}")).result
    outcome = await perform(guard_database, f"select 1 as n from {name} where {same}", v=row["v"])
    assert outcome.result == [{"n": 1}]


async def test_a_float_keeps_its_digits_as_a_double(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "mariadb":
        pytest.skip("the others send all digits")
    name = await table(guard_database, "v float")
    await perform(guard_database, f"insert into {name} values (16777216)")
    assert (await perform(guard_database, f"select cast(v as double) as v from {name}")).result == [{"v": 16777216}]


async def test_a_list_of_different_types_is_json(guard_database: GuardDatabase) -> None:
    name = await table(guard_database, "v jsonb" if guard_database.kind == "postgres" else "v text")
    for value in ([1, "a"], [None, True, 2], [{"a": 1}]):
        outcome = await perform(guard_database, f"insert into {name} values (:v)", v=value)
        assert outcome.kind == "done", outcome
    if guard_database.kind == "postgres":
        stored = await perform(guard_database, f"select v from {name}")
        assert [row["v"] for row in stored.result] == [[1, "a"], [None, True, 2], [{"a": 1}]]
