"""Names that the parser of SQL takes for keywords of other databases, in steps of real databases."""

from __future__ import annotations

from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import GuardDatabase


async def test_a_step_with_names_like_keywords_is_undone(guard_database: GuardDatabase) -> None:
    tables = Tables(guard_database)
    call = "{}"
    if tables.kind == "postgres":
        call = "keep({})"
        await tables.sql("create or replace function keep(n int) returns int immutable language sql as 'select n'")
    await tables.sql(
        "create table @kept (id int primary key, qualify int, uncache int)",
        "insert into @kept values (1, 1, 1), (2, 2, 2)",
    )
    try:
        before = await tables.dump()
        done = await tables.do([
            f"update @kept set qualify = {call.format('uncache')} + 5, uncache = 7 where qualify = 1",
            f"insert into @kept (id, qualify) values (3, {call.format('9')})",
        ])  # fmt: skip
        assert done.kind == "done", done.failure
        rows = await tables.sql("select qualify, uncache from @kept order by id")
        assert [tuple(row) for row in rows] == [(6, 7), (2, 2), (9, None)]
        assert (await tables.undo()).kind == "done"
        assert await tables.dump() == before
    finally:
        await tables.drop()
