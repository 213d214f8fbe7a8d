"""`saga worker`: run a worker in the foreground until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.shared_options import parse_duration_option, start_logging


def worker(
    health: Annotated[str | None, typer.Option(help="HOST:PORT of /livez, /readyz and /metrics")] = None,
    grace: Annotated[str, typer.Option(help="time for the attempts in flight to complete after SIGTERM")] = "30s",
    deployment: Annotated[str | None, typer.Option(help="name of the worker deployment, for versioning")] = None,
    build_id: Annotated[str | None, typer.Option("--build-id", help="build of this worker, for versioning")] = None,
    log_format: Annotated[str, typer.Option("--log-format", help="text, or json: one object per line")] = "text",
    retention: Annotated[str, typer.Option(help="how long the guards keep the rows of a finished saga")] = "30d",
) -> int:
    """Run the project's sagas and actions. SIGTERM drains: no new tasks, attempts in flight may complete."""
    from temporalio.common import WorkerDeploymentVersion

    from saga_cli.command_loop import run_command
    from saga_workers.worker.worker_process import run_worker
    from sagas.errors import UsageError
    from sagas.project import Project

    if (deployment is None) != (build_id is None):
        raise UsageError("--deployment and --build-id must be given together")
    version = None
    if deployment is not None and build_id is not None:
        for option, text in (("--deployment", deployment), ("--build-id", build_id)):
            if not text.strip():  # an unset variable of a script: without a version the worker would take all sagas
                raise UsageError(f"{option} is empty; give both, or neither for a worker without versioning")
        version = WorkerDeploymentVersion(deployment, build_id)
    start_logging(log_format)
    run_command(
        run_worker(
            Project(load_settings()),
            health=health,
            grace=parse_duration_option(grace, "--grace"),
            deployment=version,
            retention=parse_duration_option(retention, "--retention"),
        )
    )
    return 0
