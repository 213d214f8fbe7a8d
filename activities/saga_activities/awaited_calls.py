"""Coroutines that the engine gives to functions of actions, apart from ``step``: none may be left without ``await``.

A function that forgets it goes on as if the call had happened, although it did nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sagas.errors import UsageError

_NOT_AWAITED: ContextVar[list[str] | None] = ContextVar("saga_not_awaited", default=None)


@contextmanager
def requiring_await() -> Iterator[list[str]]:
    """Gives the names of the calls of a function that it has not awaited yet. To be used around the function."""
    names: list[str] = []
    token = _NOT_AWAITED.set(names)
    try:
        yield names
    finally:
        _NOT_AWAITED.reset(token)


def to_be_awaited(name: str, call: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """The call, which the function of an action knows by this name. Elsewhere it is the caller's own affair."""
    names = _NOT_AWAITED.get()
    if names is None:
        return call
    names.append(name)

    async def run() -> None:
        names.remove(name)
        await call

    return run()


def not_awaited(name: str) -> UsageError:
    return UsageError(f"`{name}` was called without `await`, so it did nothing: write `await {name}(…)`")
