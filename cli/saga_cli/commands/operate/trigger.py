"""`saga trigger`: read topics in the foreground until it is stopped."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.shared_options import parse_duration_option, start_logging
from sagas.errors import UsageError


def trigger(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="with --only: further names", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="run these sagas, consumers and bridges alone, and the listener for `replies`; separated by commas or"
            " spaces, or repeated; default: everything"
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|GROUP",
            help="where a reader begins that has no position in its topic: at the first record, after the last one, or"
            " at the position of another consumer group; readers that have one go on there",
        ),
    ] = None,
    health: Annotated[str | None, typer.Option(help="HOST:PORT of /livez, /readyz and /metrics")] = None,
    grace: Annotated[str, typer.Option(help="time for the messages in process to complete after SIGTERM")] = "30s",
    log_format: Annotated[str, typer.Option("--log-format", help="text, or json: one object per line")] = "text",
) -> int:
    """Start and signal sagas with Kafka events, run consumers and bridges, receive replies. SIGTERM drains."""
    from saga_cli.command_loop import run_command
    from saga_workers.trigger.trigger_process import run_trigger
    from sagas.project import Project

    if names and only is None:
        raise UsageError(f"{names[0]} is not an option; use --only {names[0]} to run a reader alone")
    chosen = [name for word in (*(only or ()), *(names or ())) for name in re.split(r"[,\s]+", word) if name]
    if only is not None and not chosen:
        raise UsageError("--only names no saga, consumer or bridge")
    start_logging(log_format)
    run_command(
        run_trigger(
            Project(load_settings()),
            only=chosen or None,
            start_from=start_from,
            health=health,
            grace=parse_duration_option(grace, "--grace"),
        )
    )
    return 0
