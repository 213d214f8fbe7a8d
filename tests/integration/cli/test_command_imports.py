"""A command imports no part of the engine that it does not use: most of its CPU time is imports."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection

import pytest

from tests.integration.cli.conftest import CommandLine, fresh

IMPORTED = """
import json, os, sys
from saga_cli.main import run
code = run(sys.argv[1:])
print("imported", json.dumps([code, sorted(sys.modules)]), file=sys.stderr, flush=True)
os._exit(0)
"""
"""Runs a command line, writes its exit code and what it has imported, and ends as `saga` does."""

DATABASES = ("sqlalchemy", "psycopg", "asyncmy", "aiosqlite", "sqlglot", "saga_activities.guard.tables")
SERVERS = ("httpx", "starlette", "uvicorn", "confluent_kafka", "prometheus_client", "opentelemetry")
FILES = ("pyarrow", "duckdb", "pandas", "numpy", "pyspark", "pyiceberg", "saga_spark")
WORKERS = ("temporalio.worker", "temporalio.testing", "temporalio.contrib", "saga_workers.worker")
MACHINE = ("sagas.machine.machine", "sagas.machine.state", "sagas.bulk.bulk_machine", "sagas.workflow.saga_workflow")
DEFINITIONS = ("sagas.definition.parser", "sagas.definition.checks", "sagas.expressions", "sagas.sql_text.tokens")
ACTIONS = ("sagas.actions.registry", "ruamel", "jsonschema", "referencing", "re2")
SCREENS = ("rich",)
PARSER = ("typer", "pydantic", "asyncio")

PRICED = """
from decimal import Decimal


@action("charge")
async def charge(amount: Decimal, currency: str) -> None: ...
"""
PRICED_SAGA = "saga: priced\nsteps: [{id: pay, uses: charge, with: {amount: 1.50, currency: EUR}, pivot: true}]\n"

EVERYWHERE = (*DATABASES, *SERVERS, *FILES, *WORKERS)
"""What no command needs that reads or writes a line; a ledger and a step in two phases need their database."""

ABOUT_ONE_SAGA = (*EVERYWHERE, *MACHINE, *DEFINITIONS, *ACTIONS, *SCREENS)
PROJECT_ONLY = (*DATABASES, *SERVERS, "pyarrow", "duckdb", "pyspark", "temporalio", "saga_workers")


async def imported(cli: CommandLine, *words: str) -> tuple[int, set[str]]:
    """The exit code of a command in a new Python, and the modules that it has imported."""
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, "-P", "-c", IMPORTED, "--config", str(cli.folder / "saga.toml"), *words]
    child = await asyncio.create_subprocess_exec(*argv, cwd=cli.folder, stdout=pipe, stderr=pipe)
    _, err = await child.communicate()
    *_, last = err.decode().splitlines()
    assert last.startswith("imported "), err.decode()
    code, modules = json.loads(last.removeprefix("imported "))
    return code, set(modules)


def unneeded(modules: Collection[str], forbidden: Collection[str]) -> list[str]:
    return [name for name in forbidden if any(f"{module}.".startswith(f"{name}.") for module in modules)]


async def test_commands_about_one_saga_import_its_view_alone(cli: CommandLine) -> None:
    id = fresh("ask")
    await cli.saga("start", "ask", "--id", id)
    for code, *words in (
        (0, "show", id),
        (0, "signal", id, "approve", "--data", '{"by": "ann"}'),
        (0, "watch", id),
        (9, "cancel", id),
        (9, "resolve", id, "hold", "retry", "--reason", "works again"),
        (0, "undo", id, "--reason", "returned", "--yes"),
    ):
        answered, modules = await imported(cli, *words)
        assert (answered, unneeded(modules, ABOUT_ONE_SAGA)) == (code, []), words


async def test_a_cancel_imports_no_machine(cli: CommandLine) -> None:
    id = fresh("ask")
    await cli.saga("start", "ask", "--id", id)
    code, modules = await imported(cli, "cancel", id, "--wait")
    assert (code, unneeded(modules, ABOUT_ONE_SAGA)) == (6, [])


async def test_a_ledger_that_is_not_asked_imports_no_database(cli: CommandLine) -> None:
    id = fresh("ask")
    await cli.saga("start", "ask", "--id", id)
    with (cli.folder / "saga.toml").open("a") as settings:
        settings.write('[connections.books]\nurl = "sqlite:///books.db"\n[ledger]\nconnection = "books"\n')
    code, modules = await imported(cli, "signal", id, "approve", "--data", '{"by": "ann"}')
    assert (code, unneeded(modules, ABOUT_ONE_SAGA)) == (0, [])


async def test_a_list_imports_no_database_and_no_definition(cli: CommandLine) -> None:
    code, modules = await imported(cli, "list", "--limit", "1")
    assert (code, unneeded(modules, (*EVERYWHERE, *MACHINE, *DEFINITIONS, *ACTIONS))) == (0, [])


async def test_a_start_imports_the_definition_and_no_database(cli: CommandLine) -> None:
    code, modules = await imported(cli, "start", "trip", "--id", fresh("trip"), "--wait")
    forbidden = (*EVERYWHERE, *MACHINE, *SCREENS, "jsonschema", "referencing")
    assert (code, unneeded(modules, forbidden)) == (0, [])


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("words", [("validate",), ("explain", "trip"), ("graph", "trip"), ("actions",)], ids=" ".join)
async def test_commands_that_read_the_project_import_no_client(cli: CommandLine, words: tuple[str, ...]) -> None:
    code, modules = await imported(cli, *words)
    assert (code, unneeded(modules, PROJECT_ONLY)) == (0, [])


async def test_arguments_of_usual_types_import_no_jsonschema(cli: CommandLine) -> None:
    with (cli.folder / "actions.py").open("a") as module:
        module.write(PRICED)
    (cli.folder / "priced.saga.yaml").write_text(PRICED_SAGA)
    (cli.folder / "numbered.saga.yaml").unlink()  # the schema of its input has references
    code, modules = await imported(cli, "validate")
    assert (code, unneeded(modules, ("jsonschema", "referencing"))) == (0, [])


@pytest.mark.parametrize("words", [("--help",), ("--version",)], ids=" ".join)
async def test_the_help_imports_no_parser(cli: CommandLine, words: tuple[str, ...]) -> None:
    code, modules = await imported(cli, *words)
    forbidden = (*EVERYWHERE, *MACHINE, *DEFINITIONS, *ACTIONS, *SCREENS, *PARSER, "temporalio")
    assert (code, unneeded(modules, forbidden)) == (0, [])
