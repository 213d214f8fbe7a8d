"""Spares a command further waits for a database that has just not answered.

A server that is frozen, or behind a network that drops packets, accepts connections and then says nothing. A command
asks each database several questions, over connections of their own, and each of them would wait until its timeout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine

ANSWER_TIMEOUT = 10.0
"""Seconds in which a database must have opened a connection for a command; a loaded one needs a second or two."""

_SILENT_AFTER = 4.0
"""Seconds after which a failed attempt to connect shows a silent server. Less than the timeouts of drivers."""

_HOLDS = 60.0
"""Seconds for which a database counts as silent."""

_silent: ContextVar[dict[str, float] | None] = ContextVar("silent databases", default=None)

_Connect = Callable[..., Awaitable[Any]]


@contextmanager
def asked_once() -> Iterator[None]:
    """Within this block a database that has not answered one question is not asked the next ones for a minute: they
    fail with TimeoutError at once.
    """
    token = _silent.set({})
    try:
        yield
    finally:
        _silent.reset(token)


def note_silence(engine: Engine) -> None:
    """Let the new connections of an engine heed :func:`asked_once`."""
    from sqlalchemy import event

    if engine.dialect.name == "sqlite":
        return
    server = engine.url.set(database=None, password=None).render_as_string()

    @event.listens_for(engine, "do_connect")
    def connecting(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
        silent = _silent.get()
        if silent is not None:
            options["async_creator_fn"] = partial(_connect, silent, server, _driver_of(engine.dialect.name))


def _driver_of(dialect: str) -> _Connect:
    if dialect == "postgresql":
        from psycopg import AsyncConnection

        return AsyncConnection.connect
    import asyncmy

    return asyncmy.connect


async def _connect(silent: dict[str, float], server: str, connect: _Connect, *arguments: Any, **options: Any) -> Any:
    if time.monotonic() < silent.get(server, 0.0):
        raise TimeoutError
    began = time.monotonic()
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await connect(*arguments, **options)
    except BaseException:  # also if the question is cancelled, because its own time is over
        if time.monotonic() - began >= _SILENT_AFTER:
            silent[server] = time.monotonic() + _HOLDS
        raise
