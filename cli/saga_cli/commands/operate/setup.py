"""`saga setup`: what has to be there before sagas run. Repeatable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import load_settings, target_line, with_client
from saga_cli.output import confirm, echo_progress, print_document, warn
from saga_cli.shared_options import Yes
from sagas.errors import RefusedError, SagaError, UsageError, errors_together
from sagas.text.printable import printable_line
from sagas.text.shortening import join_names

if TYPE_CHECKING:
    from temporalio.client import Client as Temporal

    from sagas.settings import Settings


def setup(
    print_only: Annotated[
        bool, typer.Option("--print", help="print the SQL and the commands for an administrator; change nothing")
    ] = False,
    yes: Yes = False,
) -> None:
    """Create search attributes, tables, and the topics and schedules that definitions name; apply schema files.

    A schedule whose definition has changed, or that was edited in the Web UI, is updated; one whose trigger was removed
    is deleted, after a question. What fails keeps nothing else from being set up; the errors are printed at the end.
    """
    from saga_workers.doctor.automatic_steps import automatic_step_problems
    from saga_workers.reconcile.declared_columns import HELP, declaration_problems
    from saga_workers.runtime.databases import set_up_database, setup_sql
    from saga_workers.temporal import search_attributes
    from saga_workers.topics import topic_creation
    from sagas.project import Project

    settings = load_settings()
    if print_only:
        commands = search_attributes.create_attribute_commands(settings.temporal.namespace or "default")
        topics = topic_creation.create_topic_commands(Project(settings))
        schedules = _schedule_commands(settings)
        sql = {
            connection.name: setup_sql(connection, settings.kafka.shards) for connection in settings.sql_connections()
        }
        print_document(
            {"commands": [*commands, *topics, *schedules], "sql": sql},
            human=lambda: _print_commands(commands, topics, schedules, sql),
        )
        return

    echo_progress(target_line(settings))
    done: list[str] = []
    failures: list[SagaError] = []
    unusable: list[str] = []

    def finish(what: str) -> None:
        done.append(what)
        echo_progress(f"✔ {what}")

    for connection in settings.sql_connections():
        with _collecting(failures):
            unusable.append(connection.name)
            asyncio.run(set_up_database(connection, settings.kafka.shards, echo_progress))
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

    with _collecting(failures):
        problems = asyncio.run(declaration_problems(settings, without=unusable, tables=False))
        if problems:
            refused = SagaError(problems[0], help=HELP)
            refused.more = problems[1:]
            raise refused
        if problems is not None:
            finish("columns of [[reconcile.effects]]")

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
    with _collecting(failures):
        _set_up_schedules(settings, finish, yes=yes)
    if failures:
        raise errors_together(failures)
    print_document({"done": done}, human=lambda: None)


def _set_up_schedules(settings: Settings, finish: Callable[[str], None], *, yes: bool) -> None:
    """Create, update and, after a question, remove the schedules of the project. Raises SagaError."""
    from saga_workers.schedules.schedule_setup import remove_schedule, set_up_schedule
    from saga_workers.schedules.schedule_status import ScheduleStatus, read_statuses, uses_schedules
    from sagas.project import Project

    project = Project(settings)
    if errors := [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]:
        where = f"{printable_line(errors[0].file)}:{errors[0].line} {errors[0].code}"
        warn(
            f"schedules of definitions with errors are left as they are, and none is removed: {where}",
            "help: saga validate    lists the errors",
        )

    async def set_up(client: Temporal, _: Settings) -> list[ScheduleStatus]:
        statuses = await read_statuses(client, project, makes_key=True)
        for status in statuses:
            if status.need in ("create", "update"):
                await set_up_schedule(client, status)
                finish(f"schedule of {status.saga}" + (f" ({status.why})" if status.need == "update" else ""))
        return statuses

    statuses = with_client(set_up)
    if uses_schedules(project) and all(status.need is None for status in statuses):
        finish(f"schedules of {join_names([status.saga for status in statuses], 10)}")
    removed = [status for status in statuses if status.need == "remove"]
    for status in statuses:
        if status.need == "look":
            warn(f"the schedule {printable_line(status.id)} is left alone: {status.why}")
    if not removed:
        return
    names = join_names([status.saga for status in removed], 10)
    try:
        confirm(f"this removes the schedules of {names}, whose triggers were removed; their sagas go on", yes=yes)
    except UsageError as error:
        raise UsageError(
            f"removing the schedules of {names} needs a confirmation: until then they stay in Temporal, and each of"
            " their starts is refused, because the definitions have no schedule any more",
            help="saga setup --yes    removes these schedules; saga setup --print prints the commands",
        ) from error

    async def remove(client: Temporal, _: Settings) -> None:
        for status in removed:
            await remove_schedule(client, status.id)
            finish(f"no schedule of {status.saga}")

    with_client(remove)


def _schedule_commands(settings: Settings) -> list[str]:
    """The commands for the schedules; if Temporal does not answer, without those that are to be removed."""
    from saga_workers.schedules.schedule_commands import create_command, needed_commands
    from saga_workers.schedules.schedule_status import read_statuses, scheduled
    from sagas.project import Project

    project = Project(settings)

    async def read(client: Temporal, _: Settings) -> list[str]:
        return needed_commands(project, await read_statuses(client, project, makes_key=True))

    try:
        return with_client(read)
    except (SagaError, RuntimeError):
        return [create_command(project, definition) for definition in scheduled(project)]


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


def _print_commands(commands: list[str], topics: list[str], schedules: list[str], sql: dict[str, str]) -> None:
    print("# Temporal")
    print("\n".join(commands))
    if topics:
        print("\n# Kafka")
        print("\n".join(topics))
    if schedules:
        print("\n# Schedules")
        print("\n".join(schedules))
    for name, text in sql.items():
        print(f"\n-- connection {name}\n{text}")
