"""Values that MariaDB or SQLite would convert without an error, as years, bits, members, texts and times: refused.

PostgreSQL refuses most of them itself. Each refusal comes before the effect, and what is not refused is stored as it
was given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_numbers import perform

TABLES = {
    "mariadb": (
        "create table converted (id int primary key, n int, t time, y year, b bit(8), e enum('10', '5'), code"
        " varchar(10), d date)",
        "create table converting (id int primary key, n int, e enum('10', '5'), code varchar(10), t time)",
        "create table names (n varchar(10))",
        "create table made (id int primary key, e enum('new', 'paid', 'sent'), f set('a', 'b', 'c'), y year, b bit(16),"
        " t time, d date, price decimal(10, 2), n int, code varchar(10))",
    ),
    "sqlite": ("create table converted (id int primary key, n int, code text)",),
}
ROWS = ("insert into converted (id, n, code) values (1, 5, '05')",)
PAIR, TEXT, GIVEN_ON = "is compared with the text", "it is compared with text", "may give it on unchanged"
CHAR, SET = " as char)`", "update converted set n = {} where id = :id"
REFUSED: list[tuple[str, Any, str]] = [
    *(("insert into converted (id, y) values (:id, :v)", value, "in four digits") for value in (26, "26", "0", True)),
    ("select 1 from converted where id = :id and y = :v", 26, "as with a year of four digits"),
    *(("insert into converted (id, b) values (:id, :v)", text, "the bytes of the text") for text in ("5", "1.5")),
    ("insert into converted (id, b) values (:id, coalesce(:v, 1))", Decimal("1.5"), "holds integers only"),
    *(
        (f"insert into converted (id, t) values (:id, {call})", "10:00:00.7", GIVEN_ON)
        for call in ("concat(:v, '')", "trim(:v)", "upper(:v)", "replace(:v, 'x', 'y')", "substr(:v, 1)")
    ),
    ("insert into converted (id, t) values (:id, cast(:v as time(6)))", "10:00:00.7", "digits after the second"),
    ("insert into converted (id, n) values (:id, trim(:v))", "1.5", GIVEN_ON),
    ("insert into converted (id, d) values (:id, concat(:v, ''))", "2026-05-01T10:00:00", GIVEN_ON),
    ("select 1 from converted c join converting o on o.code = c.n where c.id = :id", None, CHAR),
    ("select 1 from converted c join converting o on c.n = o.e where c.id = :id", None, CHAR),
    ("delete from converted where id = :id and n in (select code from converting)", None, CHAR),
    ("select 1 from converted where id = :id and coalesce(n, 0) = code", None, CHAR),
    (SET.format("code"), None, "it would round the numbers"),
    (SET.format("e"), None, "it would store the positions of the members"),
    ("update converted set e = n where id = :id", None, "it would store the members at these positions"),
    (SET.format("t"), None, "it would store the digits"),
    ("insert into converted (id, n) select id, e from converting where id = :id", None, "positions of the members"),
    *(
        (f"insert into converted (id, t) values (:id, {call})", value, GIVEN_ON)
        for call in ("addtime(:v, '1:00')", "subtime(:v, '1:00')", "date_add(:v, interval 1 hour)")
        for value in ("10:00:00.7", "2026-05-01T10:00:00")
    ),
    ("insert into converted (id, d) values (:id, adddate(:v, 1))", "2026-05-01T10:00:00", GIVEN_ON),
    ("insert into converted (id, d) values (:id, timestampadd(day, 1, :v))", "2026-05-01T10:00:00", GIVEN_ON),
    ("insert into converting select :id, code, null, null, null from converted", None, "it would round the numbers"),
    ("insert into converting select :id, n, n, null, null from converted", None, "members at these positions"),
    ("insert into converting values (:id, '5', n, null, null)", None, "members at these positions"),
    ("select 1 from converted c join (select code as n from converting) o using (n) where c.id = :id", None, PAIR),
    ("select 1 from names join converted using (n) where converted.id = :id", None, PAIR),
    (
        "select 1 from converted c join (select id from converting) o using (id) join names s using (n) where id = :id",
        None,
        PAIR,
    ),
    ("delete c from converted c join names using (n) where c.id = :id", None, PAIR),
    ("update converted c join names using (n) set c.code = 'x' where c.id = :id", None, PAIR),
    ("insert into converted (id, e, n) values (:id, :v, e)", "5", "would be another value there"),
]
MADE = (
    ("e = trim(:v)", "3", "member at this position"),
    ("e = if(code = '', lower(:v), e)", "3", "member at this position"),
    ("e = (select trim(v) from (select :v as v) s)", "3", "member at this position"),
    (
        "price = (select v from json_table(json_array(:v), '$[*]' columns (v varchar(9) path '$')) j)",
        "1.005",
        "would round it",
    ),
    ("f = replace(:v, ' ', '')", "3", "member at this position"),
    *((f"y = {call}", "26", "in four digits") for call in ("trim(:v)", "elt(1, :v)", "nvl2(:v, :v, '')")),
    *((f"b = {call}", "12", "the bytes of the text") for call in ("trim(:v)", "conv(:v, 10, 10)")),
    *((f"t = {call}", "10:00:00.7", "digits after the second") for call in ("mid(:v, 1)", "cast(:v as char(30))")),
    ("t = addtime(:v, '1:00')", "10:00:00.7", "digits after the second"),
    ("d = concat(:v, ' 10:00:00')", "2026-05-01", "the time of day"),
    *((f"price = {call}", "1.005", "would round it") for call in ("left(:v, 20)", "cast(:v as char(30))")),
    *((f"price = {call}", "1.005", "would round it") for call in ("@x := trim(:v)", "coalesce(@x := mid(:v, 1), 0)")),
    ("price = substring_index(:v, ' ', 1)", "1.005 EUR", "would round it"),
    ("price = regexp_substr(:v, '[0-9.]+')", "EUR 1.005", "would round it"),
    ("price = json_value(:v, '$.p')", '{"p": "1.005"}', "would round it"),
    ("n = json_unquote(json_extract(:v, '$.p'))", '{"p": "1.5"}', "holds integers only"),
    ("n = concat(:v, code)", "1", "pass the value itself"),
    ("n = same_text(:v)", "1", "pass the value itself"),
)
"""Assignments of texts and times that functions make of a parameter, and that the column would convert."""
STORED_AS_MADE = (
    ("e = trim(:v)", " paid", "paid"),
    ("e = if(e is null, lower(:v), e)", "PAID", "paid"),
    ("e = case when code = trim(:v) then 'paid' else 'new' end", "3", "new"),
    ("f = concat_ws(',', :v, 'b')", "a", "a,b"),
    ("y = left(:v, 4)", "2026-05-01", "2026"),
    ("y = year(:v)", "2026-05-01", "2026"),
    ("t = time(:v)", "2026-05-01T10:00:00", "10:00:00"),
    ("t = timediff(:v, '09:00:00')", "10:00:00", "01:00:00"),
    ("d = str_to_date(:v, '%d.%m.%Y')", "01.05.2026", "2026-05-01"),
    ("d = cast(:v as date)", "2026-05-01T10:00:00", "2026-05-01"),
    ("d = date_add(:v, interval id day)", "2026-05-01", "2026-05-02"),
    ("price = left(:v, 4)", "1.505", "1.50"),
    ("price = round(:v, 1)", "1.505", "1.50"),
    ("price = json_value(:v, '$.p')", {"p": Decimal("1.50")}, "1.50"),
    ("price = cast(json_value('{\"p\": 1.505}', :v) as decimal(10, 1))", "$.p", "1.50"),
    ("n = find_in_set(:v, code)", "1.5", "0"),
    ("n = length(concat(:v, code))", "1.5", "3"),
    ("n = length_of(:v)", "1.5", "3"),
    ("n = @x := trim(:v)", "5 ", "5"),
    ("code = concat(:v, code)", "1.5", "1.5"),
)
FUNCTIONS = (
    "drop function if exists length_of",
    "create function length_of(x varchar(20)) returns int deterministic return length(x)",
    "drop function if exists same_text",
    "create function same_text(x varchar(20)) returns varchar(20) deterministic return x",
    "insert into made (id, code) values (1, '')",
)
COMPARED = (
    "select 1 from converted c join (select code from converting) o on o.code = c.n",
    "select 1 from converted c, converting o where (c.n, 1) = (o.code, 1)",
    "select 1 from converted where (n, 1) in (select code, 1 from converting)",
    "select 1 from converted c, converting o where c.n = trim(o.code)",
    "select 1 from converted c, converting o where c.n + 0 = o.code",
    "select 1 from converted where n in (select trim(code) from converting union select 'x')",
    "select 1 from converted where n between (select min(code) from converting) and 7",
    "select 1 from converted where n = any (select code from converting)",
    "select 1 from converted c where exists (select 1 from converting o where o.code = c.n)",
    "with k as (select code from converting) select 1 from converted where n in (select code from k)",
    "select 1 from converted where b = code",
    "select 1 from converted where y = code",
    "select 1 from converted where n in (5, code)",
    "select case n when code then 1 end from converted",
    "select nullif(n, code) from converted",
    "select n as number, max(code) as text from converted group by n having number = text",
    "select 1 from converted natural join names",
    "delete c from converted c natural join names",
    "update converted set n = if(n = code, 1, 2)",
    "insert into converted (id) values (1) on duplicate key update n = if(n = code, 1, 2)",
)
"""Of a number with a text, wherever they stand."""
COMPARABLE = (
    "select 1 from converted where code = concat(n, '') and cast(code as signed) = n and n in (1, 5) and b = n",
    "select 1 from converted c natural join converting o where cast(c.d as date) = date(c.d)",
    "select count(*) as number from converted where find_in_set(n, code) > 0 group by code having number > 1",
    "select 1 from converted where d between (select min(d) from converted) and '2026-05-01' and y = year(d)",
)
TEXTS = ("coalesce(code, '')", "trim(code)", "case when id = 1 then code else '' end", "cast(code as char)")
STORED: list[tuple[str, Any, str, Any]] = [
    ("insert into converted (id, y) values (:id, :v)", 2026, "y", 2026),
    ("insert into converted (id, b) values (:id, :v)", 5, "bin(b)", "101"),
    ("insert into converted (id, t) values (:id, trim(:v))", " 10:00:00", "cast(t as char)", "10:00:00"),
    ("insert into converted (id, code) values (:id, concat('1.', :v))", "50", "code", "1.50"),
    ("insert into converted (id, t) values (:id, addtime(:v, '1:00'))", "10:00:00", "cast(t as char)", "11:00:00"),
    ("insert into converted (id, t) values (:id, time(:v))", "2026-05-01T10:00:00", "cast(t as char)", "10:00:00"),
    (
        "insert into converted (id, d) values (:id, date_add(:v, interval 1 day))",
        "2026-05-01",
        "cast(d as char)",
        "2026-05-02",
    ),
    ("insert into converted select :id, n, t, y, b, e, code, d from converted", None, "n", 5),
    ("insert into converted (id, n) values (:id, 1) on duplicate key update n = n + 1", None, "n", 1),
    ("insert into converted (id, n) select :id, cast(code as decimal(5)) from converted", None, "n", 5),
]
HARMLESS = (
    "select 1 from converted c join converted o using (id, code) where c.id = :id",
    "select 1 from converted c join converted o on o.id = c.id and o.code = c.code where c.n < o.n + 1 and c.id = :id",
    "select 1 from converted c join converted o on cast(o.n as char) = c.code where c.id = :id",
    "select 1 from converted where coalesce(n, '') = :id",
    "select 1 from converted where length(code) = :id and code <> '' and n = 5",
)


@pytest_asyncio.fixture
async def database(guard_database: GuardDatabase) -> AsyncIterator[GuardDatabase]:
    if guard_database.kind == "postgres":
        pytest.skip("PostgreSQL refuses them itself")
    async with guard_database.engine.connect() as connection:
        for statement in (
            "drop table if exists converted",
            "drop table if exists converting",
            "drop table if exists names",
            "drop table if exists made",
        ):
            await connection.exec_driver_sql(statement)
        for statement in (*TABLES[guard_database.kind], *ROWS):
            await connection.exec_driver_sql(statement)
        await connection.commit()
    yield guard_database


async def _run(database: GuardDatabase, statement: str, id: int, value: Any) -> str | None:
    """The message of the refusal."""
    outcome = await perform(database, statement, id=id, **({"v": value} if ":v" in statement else {}))
    assert (outcome.kind == "done") == (outcome.failure is None)
    return None if outcome.failure is None else outcome.failure.message


async def test_values_that_mariadb_would_convert_are_refused(database: GuardDatabase) -> None:
    if database.kind != "mariadb":
        pytest.skip("SQLite has neither these types nor functions")
    for statement, value, expected in REFUSED:
        message = await _run(database, statement, 7, value)
        assert expected in (message or ""), (statement, value, message)
    assert [tuple(row) for row in await database.rows("select id, n, e from converted")] == [(1, 5, None)]
    for statement, value, column, stored in STORED:
        assert await _run(database, statement, 7, value) is None, statement
        ((read,),) = await database.rows(f"select {column} from converted where id = 7")
        assert read == stored, statement
        await database.rows("delete from converted where id = 7")


@pytest.mark.parametrize("text", TEXTS)
async def test_a_number_is_not_compared_with_text(database: GuardDatabase, text: str) -> None:
    """MariaDB finds the row with 05, and SQLite none."""
    for value in (5, Decimal("5.5")):
        message = await _run(database, f"select 1 from converted where id = :id and {text} = :v", 1, value)
        assert TEXT in (message or ""), message
    assert await _run(database, f"select 1 from converted where id = :id and {text} = :v", 1, "5") is None


async def test_columns_of_one_kind_are_compared(database: GuardDatabase) -> None:
    for statement in HARMLESS:
        assert await _run(database, statement, 1, None) is None, statement


async def test_numbers_and_texts_are_not_compared_anywhere(database: GuardDatabase) -> None:
    if database.kind != "mariadb":
        pytest.skip("SQLite compares them as the values that they are")
    for statement in COMPARED:
        outcome = await perform(database, statement)
        assert PAIR in (outcome.failure.message if outcome.failure else ""), (statement, outcome)
    for statement in COMPARABLE:
        assert (await perform(database, statement)).kind == "done", statement
    assert [tuple(row) for row in await database.rows("select id, n, e from converted")] == [(1, 5, None)]


@pytest.mark.sampled(keep=1)
async def test_what_functions_make_of_a_parameter_is_stored_whole(database: GuardDatabase) -> None:
    if database.kind != "mariadb":
        pytest.skip("SQLite has neither these types nor functions")
    for statement in FUNCTIONS:
        await database.rows(statement)
    for assignment, value, expected in MADE:
        message = await _run(database, f"update made set {assignment} where id = :id", 1, value)
        assert expected in (message or ""), (assignment, value, message)
        of_join = f"update made m join names o on o.n = m.code set {assignment} where m.id = :id"
        message = await _run(database, of_join, 1, value)
        assert expected in (message or ""), (of_join, value, message)
    for assignment, value, stored in STORED_AS_MADE:
        assert await _run(database, f"update made set {assignment} where id = :id", 1, value) is None, assignment
        column = assignment.partition(" ")[0]
        ((read,),) = await database.rows(f"select cast({column} as char) from made where id = 1")
        assert read == stored, assignment
        await database.rows(f"update made set {column} = {'default' if column != 'code' else repr('')} where id = 1")
