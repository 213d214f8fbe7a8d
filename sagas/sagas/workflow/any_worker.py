"""Calls for any worker of their task queue.

A worker that runs a workflow task gets the calls of that task at once (Temporal's eager execution). If it lacks what a
call needs, as in a rolling deployment, it would get each repetition as well, and the worker beside it none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_for_any_worker: ContextVar[bool] = ContextVar("for_any_worker", default=False)


@contextmanager
def for_any_worker(wanted: bool) -> Iterator[None]:
    """Start the activities of the block for any worker, if that is ``wanted``."""
    token = _for_any_worker.set(wanted)
    try:
        yield
    finally:
        _for_any_worker.reset(token)


def is_for_any_worker() -> bool:
    """Return whether the activity that is being started is for any worker."""
    return _for_any_worker.get()
