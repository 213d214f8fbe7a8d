"""`saga setup`: what has to be there before sagas run. Repeatable."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from saga_cli.context import load_settings, target_line, with_client
from saga_cli.output import echo, print_document


def setup(
    print_only: Annotated[
        bool, typer.Option("--print", help="print the SQL and the commands for an administrator; change nothing")
    ] = False,
) -> None:
    """Create search attributes, guard and outbox tables, and the topics that definitions name; apply schema files."""
    from saga_workers.doctor.automatic_steps import automatic_step_problems
    from saga_workers.runtime.databases import set_up_database, setup_sql
    from saga_workers.temporal import search_attributes
    from saga_workers.trigger import topic_inventory
    from sagas.errors import RefusedError, SagaError
    from sagas.settings.project import Project

    settings = load_settings()
    if print_only:
        commands = search_attributes.create_attribute_commands(settings.temporal.namespace or "default")
        topics = topic_inventory.create_topic_commands(Project(settings))
        sql = {
            connection.name: setup_sql(connection, settings.kafka.shards) for connection in settings.sql_connections()
        }
        print_document(
            {"commands": [*commands, *topics], "sql": sql}, human=lambda: _print_commands(commands, topics, sql)
        )
        return

    echo(target_line(settings))
    done: list[str] = []
    for connection in settings.sql_connections():
        asyncio.run(set_up_database(connection, settings.kafka.shards, echo))
        done.append(f"tables of {connection.name}")
        echo(f"✔ {done[-1]}")

    problems = asyncio.run(automatic_step_problems(Project(settings)))
    if problems:
        refused = SagaError(problems[0], help="change these statements or tables, or write compensations")
        refused.more = problems[1:]
        raise refused
    if problems is not None:
        done.append("tables of automatic compensations")
        echo(f"✔ {done[-1]}")

    async def add(client, _settings) -> list[str]:
        from temporalio.service import RPCError

        names = await search_attributes.missing_attributes(client)
        if names:
            try:
                await search_attributes.create_attributes(client, names)
            except RPCError as error:
                raise RefusedError(
                    f"the server refuses to create the search attributes {', '.join(names)}: {error}",
                    help="saga setup --print    prints the commands for an administrator",
                ) from error
        return names

    names = with_client(add)
    done.append("search attributes" + (f" {', '.join(names)}" if names else ""))
    echo(f"✔ {done[-1]}")
    if made := topic_inventory.create_topics(Project(settings)):
        done.append(f"topics {', '.join(made)}")
        echo(f"✔ {done[-1]}")
    print_document({"done": done}, human=lambda: None)


def _print_commands(commands: list[str], topics: list[str], sql: dict[str, str]) -> None:
    print("# Temporal")
    print("\n".join(commands))
    if topics:
        print("\n# Kafka")
        print("\n".join(topics))
    for name, text in sql.items():
        print(f"\n-- connection {name}\n{text}")
