"""`saga trigger`: read topics in the foreground until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.shared_options import parse_duration_option, start_logging


def trigger(
    saga: Annotated[str | None, typer.Option(help="only the triggers of this saga; default: everything")] = None,
    health: Annotated[str | None, typer.Option(help="HOST:PORT of /livez, /readyz and /metrics")] = None,
    grace: Annotated[str, typer.Option(help="time for the messages in process to complete after SIGTERM")] = "30s",
    log_format: Annotated[str, typer.Option("--log-format", help="text, or json: one object per line")] = "text",
) -> int:
    """Start and signal sagas with Kafka events, run consumers and bridges, receive replies. SIGTERM drains."""
    import asyncio

    from saga_workers.trigger.trigger_process import run_trigger
    from sagas.settings.project import Project

    start_logging(log_format)
    asyncio.run(
        run_trigger(Project(load_settings()), saga=saga, health=health, grace=parse_duration_option(grace, "--grace"))
    )
    return 0
