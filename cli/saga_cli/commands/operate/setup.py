"""`saga setup`: what has to be there before sagas run. Repeatable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from saga_cli.context import load_settings, target_line, with_client
from saga_cli.output import echo, print_document, warn
from sagas.errors import RefusedError, SagaError, errors_together


def setup(
    print_only: Annotated[
        bool, typer.Option("--print", help="print the SQL and the commands for an administrator; change nothing")
    ] = False,
) -> None:
    """Create search attributes, guard and outbox tables, and the topics that definitions name; apply schema files.

    What fails keeps nothing else from being set up; the errors are printed at the end.
    """
    from saga_workers.doctor.automatic_steps import automatic_step_problems
    from saga_workers.runtime.databases import set_up_database, setup_sql
    from saga_workers.temporal import search_attributes
    from saga_workers.topics import topic_creation
    from sagas.settings.project import Project

    settings = load_settings()
    if print_only:
        commands = search_attributes.create_attribute_commands(settings.temporal.namespace or "default")
        topics = topic_creation.create_topic_commands(Project(settings))
        sql = {
            connection.name: setup_sql(connection, settings.kafka.shards) for connection in settings.sql_connections()
        }
        print_document(
            {"commands": [*commands, *topics], "sql": sql}, human=lambda: _print_commands(commands, topics, sql)
        )
        return

    echo(target_line(settings))
    done: list[str] = []
    failures: list[SagaError] = []
    unusable: list[str] = []

    def finish(what: str) -> None:
        done.append(what)
        echo(f"✔ {what}")

    for connection in settings.sql_connections():
        with _collecting(failures):
            unusable.append(connection.name)
            asyncio.run(set_up_database(connection, settings.kafka.shards, echo))
            unusable.remove(connection.name)
            finish(f"tables of {connection.name}")

    with _collecting(failures):
        problems = asyncio.run(automatic_step_problems(Project(settings), without=unusable))
        if problems:
            refused = SagaError(problems[0], help="change these statements or tables, or write compensations")
            refused.more = problems[1:]
            raise refused
        if problems is not None:
            finish("tables of automatic compensations")

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

    with _collecting(failures):
        names = with_client(add)
        finish("search attributes" + (f" {', '.join(names)}" if names else ""))
    with _collecting(failures):
        if made := topic_creation.create_topics(Project(settings)):
            finish(f"topics {', '.join(made)}")
    if failures:
        raise errors_together(failures)
    print_document({"done": done}, human=lambda: None)


@contextmanager
def _collecting(failures: list[SagaError]) -> Iterator[None]:
    """Keep an error for the end of the command."""
    try:
        yield
    except SagaError as error:
        failures.append(error)
    except Exception:
        if failures:
            warn(f"error: {errors_together(failures)}")
        raise


def _print_commands(commands: list[str], topics: list[str], sql: dict[str, str]) -> None:
    print("# Temporal")
    print("\n".join(commands))
    if topics:
        print("\n# Kafka")
        print("\n".join(topics))
    for name, text in sql.items():
        print(f"\n-- connection {name}\n{text}")
