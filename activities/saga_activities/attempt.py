"""The circumstances of one attempt, and what an attempt runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from saga_activities.guard.sql_handle import Sql

Body = Callable[[Sql | None], Awaitable[Any]]
"""An action that runs inside (or, with None, outside) a guarded transaction."""


class AwaitsReply(Exception):
    """The attempt goes on without a worker: whoever hears the reply completes it, by the token of the attempt."""


@dataclass(frozen=True)
class Attempt:
    """The circumstances of one attempt. Times are seconds since the epoch; ``number`` counts from 1.

    ``saga`` is the saga's name. ``traceparent`` (W3C trace context) goes along with requests to other systems; None:
    nobody traces. ``token`` is the name under which Temporal takes the attempt's end from any process; empty: from
    none but this one.
    """

    number: int
    scheduled_at: float
    deadline: float
    heartbeat: Callable[[Any], None]
    logger: logging.Logger | logging.LoggerAdapter[Any]
    traceparent: str | None = None
    saga: str = ""
    token: bytes = b""
