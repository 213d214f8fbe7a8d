"""Spares a request further waits for a worker that has just not answered.

The server lists a worker for minutes after it was killed, so each query and update to it waits until its timeout. What
one request has found out holds for the rest of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_silent: ContextVar[bool] = ContextVar("no worker answers", default=False)


@contextmanager
def no_worker_answers(is_certain: bool) -> Iterator[None]:
    """Within this block no worker counts as polling, if it ``is_certain`` that none answers for the saga."""
    token = _silent.set(is_certain)
    try:
        yield
    finally:
        _silent.reset(token)


def is_known_silent() -> bool:
    """True within a block of :func:`no_worker_answers`."""
    return _silent.get()
