"""The circumstances of one attempt, and what an attempt runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from activities.guard.sql_handle import Sql

Body = Callable[[Sql | None], Awaitable[Any]]
"""An action that runs inside (or, with None, outside) a guarded transaction."""


@dataclass(frozen=True)
class Attempt:
    """The circumstances of one attempt. Times are seconds since the epoch; ``number`` counts from 1.

    ``saga`` is the saga's name. ``traceparent`` (W3C trace context) goes along with requests to other systems; None:
    nobody traces.
    """

    number: int
    scheduled_at: float
    deadline: float
    heartbeat: Callable[[Any], None]
    logger: logging.Logger | logging.LoggerAdapter[Any]
    traceparent: str | None = None
    saga: str = ""
