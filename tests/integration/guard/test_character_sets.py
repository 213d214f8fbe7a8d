"""Text in character sets other than UTF-8: every code is restored, and passed on whole or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import create_async_engine

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.helpers.sampling import mostly_slow
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import open_guard_database
from tests.integration.guard.test_result_columns import perform

ONE_BYTE = """
armscii8 ascii cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 dec8 geostd8 greek hebrew hp8 keybcs2 koi8r koi8u latin1
latin2 latin5 latin7 macce macroman swe7 tis620
""".split()  # noqa: SIM905
SOME = ("cp1251", "armscii8", "latin1")

WIDE = {
    "ucs2": ("0041", "D800", "DC00", "FFFF"),
    "utf16": ("0041", "D83DDE00", "FFFE"),
    "utf16le": ("4100", "3DD800DE"),
    "utf32": ("00000041", "0000D800", "0010FFFF"),
    "sjis": ("41", "8790", "81E0"),
    "cp932": ("FA5B", "81E6", "879A", "FBFC"),
    "euckr": ("A2E8", "B0A1"),
    "eucjpms": ("8FA2B7", "A1C1"),
    "gbk": ("A2A1", "D0A1"),
    "big5": ("A1C3", "A1C5", "A2CC", "A451"),
}


@pytest_asyncio.fixture
async def tables(mariadb_server: DatabaseServer) -> AsyncIterator[Tables]:
    database = await open_guard_database("mariadb", mariadb_server.url("guard"))
    tables = Tables(database)
    yield tables
    await tables.drop()
    await database.connections.close()


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("charset", mostly_slow([*ONE_BYTE, *WIDE], [*SOME, "ucs2"]))
async def test_every_code_is_restored(tables: Tables, charset: str) -> None:
    codes = WIDE.get(charset) or [f"{byte:02X}" for byte in range(1, 256)]
    charset_of = f"varchar(9) character set {charset}"
    rows = ", ".join(f"(x'{code}', x'{code}', {at})" for at, code in enumerate(codes))
    await tables.sql(
        f"create table @k (k {charset_of} collate {charset}_bin primary key, v {charset_of}, n int)",
        f"insert into @k values {rows}",
    )
    read = "select n, hex(k), hex(v) from @k order by n"
    before = await tables.sql(read)
    assert len(before) == len(codes)
    assert (await tables.do(["update @k set n = n + 1000 where n % 16 = 8", "delete from @k"])).kind == "done"
    assert (await tables.undo()).kind == "done"
    assert await tables.sql(read) == before


async def test_rows_whose_keys_become_the_same_text_are_two_rows(tables: Tables) -> None:
    await tables.sql(
        "create table @k (v varchar(9) character set cp1251 collate cp1251_ukrainian_ci primary key, n int)",
        "insert into @k values (x'98', 1), ('?', 2), (x'E9', 3)",
    )
    before = await tables.sql("select hex(v), n from @k order by 1")
    assert (await tables.do(["update @k set n = 9 where n = 1"])).kind == "done"
    refused = await tables.do(["update @k set n = 9 where n = 9"], saga="other")
    assert refused.failure is not None
    assert refused.failure.type == "RowLocked"
    assert "the row v=x'98' of" in refused.failure.message
    assert (await tables.do(["update @k set n = 8 where n = 2"], step="second")).kind == "done"
    assert (await tables.do(["update @k set n = 7 where n = 3"], step="third")).kind == "done"
    await tables.sql("update @k set n = 6 where n = 7")
    parked = (await tables.undo("third")).park_reason
    assert parked is not None
    assert "the row v=й of" in parked
    await tables.sql("update @k set n = 3 where n = 6")
    assert [(await tables.undo(step)).kind for step in ("third", "second", "change")] == ["done"] * 3
    assert await tables.sql("select hex(v), n from @k order by 1") == before


async def test_enums_and_sets_keep_their_members(tables: Tables) -> None:
    members = "'a', 'б', 'в'"
    await tables.sql(
        f"create table @m (k enum({members}) character set cp1251 primary key, e enum({members}) character set cp1251,"
        f" s set({members}) character set koi8r)",
        "insert into @m values (1, 2, 3), (2, 3, 6), (3, null, 0)",
    )
    before = await tables.dump()
    assert (await tables.do(["update @m set e = 'a', s = 'a'", "delete from @m where k = 'в'"])).kind == "done"
    assert (await tables.undo()).kind == "done"
    assert await tables.dump() == before


async def test_another_character_set_parks_the_undo(tables: Tables) -> None:
    await tables.sql(
        "create table @t (id int primary key, v varchar(9) character set latin1)", "insert into @t values (1, 'é')"
    )
    assert (await tables.do(["update @t set v = 'è'"])).kind == "done"
    await tables.sql("alter table @t modify v varchar(9) character set utf8mb4")
    parked = (await tables.undo()).park_reason
    assert parked is not None
    assert "had the type varchar(9) character set latin1" in parked
    assert await tables.sql("select v from @t") == [("è",)]


async def test_half_a_surrogate_pair_is_refused_by_name(tables: Tables) -> None:
    await tables.sql(
        "create table @t (id int primary key, v varchar(9) character set utf8mb3)",
        "insert into @t values (1, x'EDA080')",
    )
    refused = await tables.do(["delete from @t"])
    assert refused.failure is not None
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert "a value in the column v of guard.t" in refused.failure.message
    assert "is not valid in its character set: correct the row" in refused.failure.message
    refused = await perform(tables.database, tables.named("select v as w from @t"))
    assert "the text in the column w is not UTF-8: correct the row, or read the bytes with `hex(w) as w`" in str(
        refused.failure
    )


# What comes out of a step


@pytest.mark.parametrize("charset", mostly_slow([*ONE_BYTE, *WIDE], [*SOME, "utf32"]))
async def test_a_text_comes_back_as_the_same_bytes_or_is_refused(tables: Tables, charset: str) -> None:
    codes = WIDE.get(charset) or [f"{byte:02X}" for byte in range(1, 256)]
    await tables.sql(
        f"create table @t (id int primary key, v varchar(9) character set {charset})",
        f"create table @u (id int primary key, v varchar(9) character set {charset})",
        "insert into @t values " + ", ".join(f"({at}, x'{code}')" for at, code in enumerate(codes)),
    )
    converted = f"convert(convert(v using utf8mb4) using {charset})"
    engine = create_async_engine(tables.database.engine.url)  # whose cursors do not take a loss for an error
    async with engine.connect() as connection:
        rows: Any = await connection.exec_driver_sql(tables.named(f"select id, binary {converted} = binary v from @t"))
        back = {at for at, is_same in rows if is_same and codes[at][-4:] not in ("D800", "DC00")}
    await engine.dispose()
    assert back
    select = "select id, v from @t where id in ({})"
    result = await perform(tables.database, tables.named(select.format(", ".join(map(str, back)))))
    assert result.kind == "done", result
    copied = ", ".join(f"({row['id']}, :v{row['id']})" for row in result.result)
    params = {f"v{row['id']}": row["v"] for row in result.result}
    outcome = await perform(tables.database, tables.named(f"insert into @u values {copied}"), **params)
    assert outcome.kind == "done", outcome
    same = "select count(*) from @t join @u on @t.id = @u.id and hex(@t.v) = hex(@u.v)"
    assert await tables.sql(same) == [(len(back),)]
    for at in sorted(set(range(len(codes))) - back)[:5]:
        refused = await perform(tables.database, tables.named(select.format(at)))
        assert (refused.kind, refused.retryable) == ("failed", False)
        assert f"the column v has a code of the character set {charset} that no Unicode character becomes" in str(
            refused.failure
        )


async def test_a_lost_character_is_never_a_question_mark(tables: Tables) -> None:
    await tables.sql(
        "create table @t (id int primary key, v varchar(9) character set cp1251, w varchar(9) character set utf8mb3)",
        "insert into @t values (1, x'4198', 'ж'), (2, 'жа?', '?')",
    )
    advice = "`hex(v) as v` and write them with `convert(unhex(:v) using cp1251)`"
    for statement, message in (
        ("select id, v from @t", advice),
        ("insert into @t (id, v) values (3, x'98') returning v", advice),
        ("select concat(v, '!') as v from @t", advice),
        ("select concat(v, w) as v from @t", "Cannot convert 'cp1251' character 0x98 to 'utf8mb3'"),
        ("select cast(v as char) as v from @t", "Cannot convert 'cp1251' character 0x98 to 'utf8mb4'"),
        ("insert into @t (id, w) select 3, v from @t where id = 1", "1366"),
    ):
        refused = await perform(tables.database, tables.named(statement))
        assert (refused.kind, refused.retryable) == ("failed", False), statement
        assert message in str(refused.failure), statement
    assert await tables.sql("select count(*) from @t") == [(2,)]
    nopad = (
        "select convert('ж' using utf8mb4) collate {0}_uca1400_ai_ci as a, convert('ж' using cp1251) collate {1} as b"
    )
    other = await perform(tables.database, nopad.format("utf8mb4", "cp1251_nopad_bin"))
    assert other.result == [{"a": "ж", "b": "ж"}]
    plain = await perform(
        tables.database, tables.named("select v, w, concat(v, w) as b, uuid() as u from @t where id = 2")
    )
    assert {**plain.result[0], "u": ""} == {"v": "жа?", "w": "?", "b": "жа??", "u": ""}
    bytes_of = await perform(tables.database, tables.named("select hex(v) as v from @t where id = 1"))
    copied = tables.named("insert into @t (id, v) values (3, convert(unhex(:v) using cp1251))")
    assert (await perform(tables.database, copied, **bytes_of.result[0])).kind == "done"
    assert await tables.sql("select hex(v) from @t where id = 3") == [("4198",)]


# PostgreSQL and SQLite


NOT_UTF8 = {"postgres": "convert_from('\\x41ff', 'SQL_ASCII')", "sqlite": "cast(x'41ff' as text)"}
BYTES = {"postgres": "encode(convert_to(v, 'SQL_ASCII'), 'hex')", "sqlite": "hex(v)"}


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_text_that_is_no_utf_8(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if kind == "postgres":
        url = new_database(request.getfixturevalue("postgres_server"), encoding="SQL_ASCII")
    database = await open_guard_database(kind, url)
    tables = Tables(database)
    await tables.sql(
        "create table @t (v text primary key, n int)",
        f"insert into @t values ({NOT_UTF8[kind]}, 1), ('A?', 2)",
    )
    refused = await perform(database, tables.named("select v from @t"))
    assert (refused.kind, refused.retryable) == ("failed", False)
    message = "the text in the column v is not UTF-8: correct the row, or read the bytes with `hex(v) as v`"
    of_postgres = "invalid byte sequence for encoding"
    assert (of_postgres if kind == "postgres" else message) in str(refused.failure)
    read = tables.named(f"select {BYTES[kind]} as v, n from @t order by n")
    before = (await perform(database, read)).result
    assert before[0]["v"].lower() == "41ff"
    outcome = await tables.do(["update @t set n = 9 where n = 1"])
    if kind == "postgres":
        assert outcome.failure is not None
        assert of_postgres in outcome.failure.message
        assert not outcome.retryable
    else:
        assert (await tables.do(["delete from @t"], step="all")).kind == "done"
        assert [(await tables.undo(step)).kind for step in ("all", "change")] == ["done", "done"]
    assert (await perform(database, read)).result == before
    await database.connections.close()


async def test_a_database_in_latin_1_takes_no_other_character(postgres_server: DatabaseServer) -> None:
    database = await open_guard_database("postgres", new_database(postgres_server, encoding="LATIN1"))
    tables = Tables(database)
    await tables.sql("create table @t (v text primary key, n int)", "insert into @t values ('é', 1), ('?', 2)")
    refused = await perform(database, tables.named("insert into @t values (:v, 3)"), v="ж")
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert (await tables.do(["delete from @t where n = 1"])).kind == "done"
    assert (await tables.undo()).kind == "done"
    assert (await perform(database, tables.named("select v from @t order by n"))).result == [{"v": "é"}, {"v": "?"}]
    await database.connections.close()
