"""Errors of drivers for people: the sentence of the database, without statement and links."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from saga_activities.guard.database_errors import message_of
from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from tests.integration.guard.conftest import GuardDatabase, clock, new_address

EFFECTS = sa.table("effects", sa.column("saga_id"), sa.column("generation"))
DEBRIS = ("[SQL", "sqlalche.me", "DETAIL", "CONTEXT", "LINE 1", "\n", "(sqlalchemy", "(psycopg", "(asyncmy", "sqlite3.")


async def _attempt(database: GuardDatabase, statement: sa.Executable) -> Outcome:
    async def body(sql: SqlSession) -> None:
        await sql.execute(statement)

    return await database.guard.do(new_address(), "h", body, **clock())


@pytest.mark.parametrize(
    "statement",
    [
        sa.insert(EFFECTS).values(saga_id=sa.bindparam("missing")),
        sa.select(sa.func.no_such_function(EFFECTS.c.saga_id)),
        sa.select(sa.literal_column("nowhere.x")).select_from(EFFECTS),
    ],
)
async def test_a_failure_has_the_sentence_alone(guard_database: GuardDatabase, statement: sa.Executable) -> None:
    outcome = await _attempt(guard_database, statement)
    assert outcome.failure is not None
    assert [words for words in DEBRIS if words in outcome.failure.message] == [], outcome.failure.message


async def test_the_text_of_an_error_is_the_sentence(guard_database: GuardDatabase) -> None:
    for statement in ("select * from nowhere", "insert into effects (nothing) values (1)"):
        async with guard_database.engine.connect() as connection:
            with pytest.raises(SQLAlchemyError) as caught:
                await connection.exec_driver_sql(statement)
        said = message_of(caught.value)
        assert [words for words in DEBRIS if words in said] == [], said
        assert ("nowhere" in said) or ("nothing" in said)
