"""Ctrl-C: a command that has begun something says what goes on before it leaves with exit code 130."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from saga_cli.output import warn

INTERRUPTED = 130


@contextmanager
def on_ctrl_c(tell: Callable[[], str]) -> Iterator[None]:
    """Say ``tell()`` on standard error when Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        warn(tell())
        raise
