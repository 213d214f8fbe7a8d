"""`saga worker`: run a worker in the foreground until it is told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.context import load_settings


def worker(
    health: Annotated[str | None, typer.Option(help="HOST:PORT of /livez, /readyz and /metrics")] = None,
    grace: Annotated[str, typer.Option(help="how long attempts in flight may take to end after SIGTERM")] = "30s",
    deployment: Annotated[str | None, typer.Option(help="name of the worker deployment, for versioning")] = None,
    build_id: Annotated[str | None, typer.Option("--build-id", help="build of this worker, for versioning")] = None,
) -> int:
    """Serve the project's sagas and actions. SIGTERM drains: nothing new is taken, what runs may end."""
    import asyncio
    import logging
    from datetime import timedelta

    from temporalio.common import WorkerDeploymentVersion

    from sagas.definition.durations import parse_duration
    from sagas.errors import UsageError
    from sagas.project import Project
    from workers.run import run_worker

    if (deployment is None) != (build_id is None):
        raise UsageError("--deployment and --build-id belong together")
    version = WorkerDeploymentVersion(deployment, build_id) if deployment and build_id else None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        seconds = parse_duration(grace)
    except ValueError as error:
        raise UsageError(f"--grace: {error}", help="for example --grace 30s") from None
    asyncio.run(
        run_worker(Project(load_settings()), health=health, grace=timedelta(seconds=seconds), deployment=version)
    )
    return 0
