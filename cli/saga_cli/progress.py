"""A line on the terminal that says what a long command does now."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from saga_cli.output import make_console


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is done now, and for how long already."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda what: progress.update(task, description=what, refresh=True)
