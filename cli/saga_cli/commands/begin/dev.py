"""`saga dev`: the embedded stack of this project."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import GLOBAL_OPTIONS_HELP, global_options, load_settings
from saga_cli.output import echo, echo_progress, on_ctrl_c, print_document, print_table, wants_json, warn
from sagas.errors import SagaError

if TYPE_CHECKING:
    from saga_workers.devstack.stack import Stack
    from sagas.settings import Settings

_OPTIONAL_SERVICES = ("kafka", "relay", "trigger", "spark")
"""Services that a project may not need: not shown while they do not run."""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    epilog=GLOBAL_OPTIONS_HELP,
    help="The embedded stack, in the background: Temporal with its Web UI, PostgreSQL, a worker, Kafka if it is used.",
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.command()
def up(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="only these services: temporal, postgres, kafka, worker, relay, trigger; comma-separated or repeated"
        ),
    ] = None,
) -> None:
    """Start the services that are not running and wait until they are ready. Repeatable."""
    from saga_workers.devstack.stack import service_names

    names = service_names(only)
    stack = _stack()
    with on_ctrl_c(
        lambda: "interrupted: started services keep running; `saga dev up` starts the rest, `saga dev down` stops them"
    ):
        stack.up(names)
    _print_status(stack, reveal=False)


@app.command()
def restart(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="temporal, postgres, kafka, worker, relay, trigger; default: worker, relay and trigger"),
    ] = None,
) -> None:
    """Stop services and start them again, for instance after a change that they cannot see."""
    from saga_workers.devstack.stack import service_names

    chosen = service_names(names or None)
    stack = _stack()
    with on_ctrl_c(lambda: "interrupted: `saga dev up` starts what is stopped now"):
        stack.restart(chosen or [])
    _print_status(stack, reveal=False)


@app.command()
def status(
    reveal: Annotated[
        bool, typer.Option("--reveal", help="show the passwords of the embedded servers; not recorded")
    ] = False,
) -> None:
    """Show the services, their states and addresses. Passwords of the embedded servers are in -o json only."""
    _print_status(_stack_as_it_is(), reveal=reveal or wants_json())


@app.command()
def logs(
    name: Annotated[str, typer.Argument(help="temporal, postgres, worker, kafka, relay or trigger")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="keep printing new lines")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="number of earlier lines")] = 200,
) -> None:
    """Print the log of a service."""
    from saga_workers.devstack.stack import refuse_unknown

    refuse_unknown([name])
    log = _stack_as_it_is().folder.log_file(name)
    if not log.exists():
        raise SagaError(f"{name} has no log, because it was never started", help="saga dev up")
    _print_log(log, lines, follow=follow)


@app.command()
def psql(
    connection: Annotated[
        str | None, typer.Argument(help="a connection to PostgreSQL; default: the only one of the project")
    ] = None,
    commands: Annotated[
        list[str] | None, typer.Option("--command", "-c", help="run this SQL and end; repeatable, run in order")
    ] = None,
) -> None:
    """Open the embedded psql on a connection's database, as the user of the connection."""
    from saga_workers.devstack.postgres_client import exec_psql

    exec_psql(_valid_settings(), connection, commands or ())


@app.command()
def down(wipe: Annotated[bool, typer.Option("--wipe", help="delete the data as well")] = False) -> None:
    """Stop what `saga dev up` started; the data stays unless --wipe."""
    stack = _stack_as_it_is()
    with on_ctrl_c(lambda: "interrupted: some services may still run; `saga dev down` stops them"):
        stopped = stack.down(wipe=wipe)
    echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")
    if wipe:
        echo("the data was deleted")


def _stack() -> Stack:
    from saga_workers.devstack.stack import Stack

    return Stack(load_settings(), echo_progress)


def _stack_as_it_is() -> Stack:
    """The stack to look at or to stop, also while a setting is wrong: what runs was started before that."""
    from saga_workers.devstack.stack import Stack

    return Stack(_valid_settings(without_file=True), echo_progress)


def _valid_settings(*, without_file: bool = False) -> Settings:
    """The settings without those that are wrong, which are named. ``without_file``: also if the whole file is."""
    from sagas.settings.loader import load_valid_settings

    settings, mistakes = load_valid_settings(global_options().config, without_file=without_file)
    for mistake in mistakes:
        warn(mistake.message)
    return settings


def _print_status(stack: Stack, *, reveal: bool) -> None:
    document = stack.status(reveal=reveal)
    print_document(document, human=lambda: _print_table(document))


def _print_table(document: dict[str, Any]) -> None:
    connections, catalogs = document["connections"], document["catalogs"]
    rows = [
        (
            name,
            service["state"],
            service["pid"] or "-",
            service.get("url") or service.get("address") or service.get("health", ""),
        )
        for name, service in document.items()
        if name not in ("connections", "catalogs")
        and not (name in _OPTIONAL_SERVICES and service["state"] == "stopped")
    ]
    print_table(rows, ("service", "state", "pid", "where"))
    if connections:
        echo("")
        print_table(list(connections.items()), ("connection", "url"))
    if catalogs:
        echo("")
        print_table([(name, properties.get("uri", "-")) for name, properties in catalogs.items()], ("catalog", "uri"))
    if document["temporal"].get("web_ui"):
        echo("", f"Web UI  {document['temporal']['web_ui']}")


def _print_log(log: Path, lines: int, *, follow: bool) -> None:
    with log.open(encoding="utf-8", errors="replace") as file:
        past = file.read().splitlines()
        for line in past[len(past) - min(lines, len(past)) :]:
            print(line)
        while follow:
            text = file.read()
            if text:
                print(text, end="", flush=True)
            else:
                time.sleep(0.2)
