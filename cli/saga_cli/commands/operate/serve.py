"""`saga serve`: start sagas and read their outcomes over HTTP, in the foreground until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.shared_options import parse_duration_option, start_logging


def serve(
    listen: Annotated[str, typer.Option(help="HOST:PORT of the API")] = "127.0.0.1:8090",
    health: Annotated[str | None, typer.Option(help="HOST:PORT of /livez, /readyz and /metrics")] = None,
    grace: Annotated[str, typer.Option(help="time for the requests under way to complete after SIGTERM")] = "30s",
    log_format: Annotated[str, typer.Option("--log-format", help="text, or json: one object per line")] = "text",
) -> int:
    """Start, read and operate sagas over HTTP, for callers with a token of [serve]. Needs no worker.

    GET /openapi.json lists the requests. /console has pages for people, with console = true under [serve].
    """
    from saga_cli.command_loop import run_command
    from saga_workers.serve.serve_process import run_api

    start_logging(log_format)
    run_command(run_api(load_settings(), listen, health=health, grace=parse_duration_option(grace, "--grace")))
    return 0
