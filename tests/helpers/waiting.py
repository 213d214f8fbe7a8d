"""Waiting for what has no event. A generous limit costs nothing when it comes true, and a busy machine needs it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable
from typing import Any

LIMIT = 180.0
"""Seconds: below the five minutes that a test may take, so that the error says what has not come true."""


LONGEST_PAUSE = 0.5
"""Seconds between two looks at what takes long."""


async def until(
    condition: Callable[[], Any], what: str | None = None, *, limit: float = LIMIT, pause: float | None = None
) -> Any:
    """Wait for a condition, or an awaitable one, to be truthy; gives its value.

    ``pause``: seconds between two looks. An awaitable condition mostly asks a server, which has to work for what is
    waited for: by default it is asked less often when the wait is long.

    Raises AssertionError after ``limit`` seconds, with ``what`` (default: the source of the condition) and its last
    value.
    """
    began = time.monotonic()
    while True:
        value = condition()
        asked = inspect.isawaitable(value)
        while inspect.isawaitable(value):
            value = await value
        if value:
            return value
        waited = time.monotonic() - began
        assert waited < limit, _problem(condition, what, limit, value)
        usual = max(0.1, min(waited / 10, LONGEST_PAUSE)) if asked else 0.02
        await asyncio.sleep(usual if pause is None else pause)


async def until_in_thread(condition: Callable[[], Any], what: str | None = None, *, limit: float = LIMIT) -> Any:
    """Wait for a condition that blocks, such as a question to a broker, while others need this event loop."""
    return await until(lambda: asyncio.to_thread(condition), what or _source(condition), limit=limit)


def until_blocking(
    condition: Callable[[], Any], what: str | None = None, *, limit: float = LIMIT, pause: float = 0.05
) -> Any:
    """Wait for a condition outside of an event loop."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, _problem(condition, what, limit, value)
        time.sleep(pause)
    return value


def _problem(condition: Callable[[], Any], what: str | None, limit: float, value: Any) -> str:
    return f"not within {limit:.0f} s: {what or _source(condition)}; the last value is {value!r}"


def _source(condition: Callable[[], Any]) -> str:
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(condition).strip()
    return repr(condition)
