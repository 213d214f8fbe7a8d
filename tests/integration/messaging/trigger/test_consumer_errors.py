"""Errors of a consumer's statements, counted by the database: one attempt, three, or until the database can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sagas import Message, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.engine.error_causes import ANYWHERE, Cause
from tests.integration.messaging.trigger.trigger_environment import (
    count,
    fresh,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
)

RAISED = Cause("raised", "select passing('count_raised', 'P0001')", attempts=5)
SECRET = "4000-kanari"
TAKEN = Cause(
    "taken",
    "insert into taken select number from taken",
    attempts=3,
    tables=("create table taken (number text primary key)", f"insert into taken values ('{SECRET}')"),
)
"""Its detail has the value of a row: `Key (number)=(…) already exists`."""

ERRORS = {cause.name: cause for cause in (*ANYWHERE, RAISED, TAKEN) if cause.name != "right"}
PASSING = {name: f"select passing('count_{name}', '{name}')" for name in ("40001", "55p03", "lost")}
FAILING = """
create function passing(counter text, code text) returns void language plpgsql as $$ begin
  if pg_sequence_last_value(counter::regclass) < 6 then
    if code = 'lost' then perform pg_terminate_backend(pg_backend_pid()); end if;
    raise exception 'it passes' using errcode = upper(code);
  end if;
end $$
"""
"""Heals at the sixth attempt, after those that a conflict or an error of the handler has."""


@pytest.mark.parametrize("own_limit", [None, pytest.param(2, marks=pytest.mark.slow)])
async def test_each_cause_has_its_attempts(
    own_limit: int | None,
    kafka: Broker,
    postgres_server: DatabaseServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop, topic, name = await open_shop(postgres_server), kafka.create_topic(), fresh("errors")

    @consumer(topic, connection="shop", name=name, max_attempts=own_limit)
    async def handle(message: Message) -> None:
        await message.sql.execute(f"select nextval('count_{message.value['name']}')")
        await message.sql.execute("insert into effect (what, number) values (:name, 1)", name=message.value["name"])
        await message.sql.execute(message.value["statement"])

    statements = {name: cause.statement for name, cause in ERRORS.items()} | PASSING
    with shop.connect() as connection:
        for statement in (FAILING, *(table for cause in ERRORS.values() for table in cause.tables)):
            connection.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]
        for cause in statements:
            connection.execute(f"create sequence count_{cause}")  # pyright: ignore[reportArgumentType, reportCallIssue]
    project = project_of(
        tmp_path, kafka.settings(outbox="shop"), "127.0.0.1:1", readers=[handle], connections={"shop": shop.url}
    )
    for cause, statement in statements.items():
        kafka.produce(topic, {"name": cause, "statement": statement}, key=cause)
    kafka.produce(topic, {"name": "value", "statement": "select 1"}, key="value")
    async with triggering(project) as metrics:
        group = f"{project.settings.kafka.prefix}-consumer-{name}"
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        assert count(metrics, "saga_dead_letters_total") == len(ERRORS)

    def attempts(cause: str) -> Any:
        with shop.connect() as connection:
            statement = f"select last_value from count_{cause}"
            return connection.execute(statement).fetchall()[0][0]  # pyright: ignore[reportArgumentType, reportCallIssue]

    wanted = {name: min(cause.attempts, own_limit or cause.attempts) for name, cause in ERRORS.items()}
    wanted |= dict.fromkeys(PASSING, 6)
    wanted["value"] += 1  # the message behind it, which succeeds
    assert {cause: attempts(cause) for cause in statements} == wanted
    assert sorted(shop.effects()) == sorted((cause, 1) for cause in (*PASSING, "value"))
    assert shop.inbox() == {"DEAD": len(ERRORS), "DONE": len(PASSING) + 1}
    letters = {letter.key: letter.headers["sagadlqreason"] for letter in kafka.read_committed(f"{topic}.dlq")}
    assert letters.keys() == ERRORS.keys()
    for name, cause in ERRORS.items():
        assert cause.statement in letters[name]
    assert "violates unique constraint" in letters["taken"]
    assert letters["taken"] in caplog.text
    assert SECRET not in str(letters) + caplog.text
