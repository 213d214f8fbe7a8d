"""Errors of a consumer's statements, counted by the database: one attempt, three, or until the database can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sagas import Message, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.integration.messaging.trigger.trigger_environment import (
    count,
    fresh,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
    until,
)

SCHEMA = """
create table single (n int constraint only_one unique);
insert into single values (1);
create table parent (n int primary key);
create table child (n int references parent);
create table narrow (n numeric(5, 2));
create table filled (n int not null, constraint positive check (n > 0));
create function passing(counter text, code text) returns void language plpgsql as $$ begin
  if pg_sequence_last_value(counter::regclass) < 6 then
    if code = 'LOST' then perform pg_terminate_backend(pg_backend_pid()); end if;
    raise exception 'it passes' using errcode = code;
  end if;
end $$;
"""
ERRORS: dict[str, tuple[str, int, str]] = {
    "table": ("insert into nowhere values (1)", 1, "nowhere"),
    "value": ("insert into narrow values (12345.67)", 1, "22003"),
    "null": ("insert into filled values (null)", 1, "23502"),
    "check": ("insert into filled values (-1)", 1, "23514"),
    "unique": ("insert into single values (1)", 3, "23505"),
    "foreign_key": ("insert into child values (1)", 3, "23503"),
    "raised": ("select passing('count_raised', 'P0001')", 5, "it passes"),
}
"""Statement, attempts, and a part of the reason in the dead letter."""
PASSING = {name: f"select passing('count_{name}', '{name.upper()}')" for name in ("40001", "55p03", "lost")}


@pytest.mark.parametrize("own_limit", [None, pytest.param(2, marks=pytest.mark.slow)])
async def test_each_cause_has_its_attempts(
    own_limit: int | None, kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    shop, topic, name = await open_shop(postgres_server), kafka.create_topic(), fresh("errors")

    @consumer(topic, connection="shop", name=name, max_attempts=own_limit)
    async def handle(message: Message) -> None:
        await message.sql.execute(f"select nextval('count_{message.value['name']}')")
        await message.sql.execute("insert into effect (what, number) values (:name, 1)", name=message.value["name"])
        await message.sql.execute(message.value["statement"])

    statements = {name: statement for name, (statement, _, _) in ERRORS.items()} | PASSING
    with shop.connect() as connection:
        connection.execute(SCHEMA)
        for cause in statements:
            connection.execute(f"create sequence count_{cause}")  # pyright: ignore[reportArgumentType, reportCallIssue]
    project = project_of(
        tmp_path, kafka.settings(outbox="shop"), "127.0.0.1:1", readers=[handle], connections={"shop": shop.url}
    )
    for cause, statement in statements.items():
        kafka.produce(topic, {"name": cause, "statement": statement}, key=cause)
    kafka.produce(topic, {"name": "table", "statement": "select 1"}, key="table")
    async with triggering(project) as metrics:
        group = f"{project.settings.kafka.prefix}-consumer-{name}"
        await until(lambda: fully_consumed(kafka, group, topic))
        assert count(metrics, "saga_dead_letters_total") == len(ERRORS)

    def attempts(cause: str) -> Any:
        with shop.connect() as connection:
            statement = f"select last_value from count_{cause}"
            return connection.execute(statement).fetchall()[0][0]  # pyright: ignore[reportArgumentType, reportCallIssue]

    wanted = {name: usual if own_limit is None else min(usual, own_limit) for name, (_, usual, _) in ERRORS.items()}
    wanted |= dict.fromkeys(PASSING, 6)
    wanted["table"] += 1  # the message behind it, which succeeds
    assert {cause: attempts(cause) for cause in statements} == wanted
    assert sorted(shop.effects()) == sorted((cause, 1) for cause in (*PASSING, "table"))
    assert shop.inbox() == {"DEAD": len(ERRORS), "DONE": len(PASSING) + 1}
    letters = {letter.key: letter.headers["sagadlqreason"] for letter in kafka.read_committed(f"{topic}.dlq")}
    assert letters.keys() == ERRORS.keys()
    for cause, (_, _, reason) in ERRORS.items():
        assert reason in letters[cause]
