"""`saga demo` in a clone of this project: runs the program that belongs to the demo's own project."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from saga_cli.context import global_options
from saga_cli.main import CHECKOUT_DEMO
from sagas.settings.python_processes import python_command_of


def demo(
    baskets: Annotated[int, typer.Option("--baskets", "-n", min=1, help="number of real baskets to run")] = 200,
) -> int:
    """Run real shopping baskets as sagas, follow their events, close their days with Spark, and reconcile.

    The stack keeps running afterwards.
    """
    options = global_options()
    words = ["--baskets", str(baskets), "-o", options.format, *(["--debug"] if options.debug else [])]
    project = _project(options.config)
    return subprocess.run(python_command_of(project, "demo", *words), cwd=project, check=False).returncode


def _project(config: str | None) -> Path:
    """The folder of the demo's project: that of ``config``, the one we stand in, or the one of the clone."""
    named = [Path(config).resolve().parent] if config else []
    folders = [folder for folder in (*named, Path.cwd()) if (folder / "demo" / "__main__.py").exists()]
    return folders[0] if folders else CHECKOUT_DEMO.parent
