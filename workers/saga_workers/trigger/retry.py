"""Retries a message until it has had its effect, or is given up, which makes it a dead letter."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy.exc import StatementError

from saga_activities.concurrency import Backoff, wait_first
from saga_workers.runtime.database_access import driver_message
from saga_workers.trigger.delivery import Delivery
from sagas.errors import SagaError
from sagas.settings.masking import mask
from sagas.text.author_values import text_of
from sagas.text.printable import printable_line

log = logging.getLogger("saga.trigger")

USUAL_ATTEMPTS = 5
"""Failed attempts after which a message is given up."""

_BACKOFF = Backoff(0.2, 10.0)
_ONCE = Delivery()


class AttemptFailed(Exception):
    """An attempt failed and may be retried; the text is an error message.

    ``intervals``: the seconds before the second attempt and each later one, instead of the usual limit.
    """

    def __init__(self, message: str, intervals: Sequence[float] | None = None) -> None:
        super().__init__(message)
        self.intervals = intervals


class PoisonMessage(Exception):
    """The message can never be processed; the text is the reason."""


class DependencyUnavailable(Exception):
    """A dependency does not answer; the message is retried without limit."""


class ProcessStopping(Exception):
    """The process is stopping; the message was not processed and will be delivered to another process."""


async def retry_until_done(
    attempt: Callable[[int], Awaitable[None]],
    *,
    about: dict[str, Any],
    stop: asyncio.Event,
    max_attempts: int,
    delivery: Delivery = _ONCE,
    log_wait: Callable[[str, dict[str, Any]], None] | None = None,
) -> str | None:
    """Call ``attempt`` (with its number, from 1) until it succeeds; returns None then, else why the message is poison.

    ``about`` is the ``extra`` of its log lines. ``delivery``: attempts that ended their process count as failed.
    ``log_wait`` logs the waits instead, with their reason.

    DependencyUnavailable is retried without limit; any exception other than PoisonMessage counts as one of
    ``max_attempts``. Raises ProcessStopping.
    """
    number, failures, waits = delivery.ended, delivery.ended, 0
    if (reason := delivery.give_up_reason(max_attempts)) is not None:
        return reason
    while True:
        number += 1
        try:
            async with delivery.turn():
                await attempt(number)
        except PoisonMessage as error:
            return printable_line(str(error))
        except ProcessStopping:
            raise
        except DependencyUnavailable as error:
            waits += 1
            reason = printable_line(str(error))
            # Log the first wait at once, and later ones ever more rarely.
            if log_wait is not None:
                log_wait(reason, about)
            elif waits & (waits - 1) == 0:
                _log_wait(reason, about)
            backoff = _BACKOFF.delay(waits - 1)
        except Exception as error:  # noqa: BLE001 - it becomes the reason in the dead letter
            failures += 1
            message = error_message(error)
            intervals = error.intervals if isinstance(error, AttemptFailed) else None
            limit = max_attempts if intervals is None else len(intervals) + 1
            if failures >= limit:
                return message
            log.warning("attempt %d of %d failed: %s", failures, limit, message, extra=about)
            backoff = _BACKOFF.delay(failures - 1) if intervals is None else intervals[failures - 1]
        else:
            return None
        await sleep_or_stop(backoff, stop)


_LOG_INTERVAL = 10.0
"""Seconds in which a :class:`WaitLog` logs the same reason once."""


class WaitLog:
    """Logs the waits of messages that are retried together: the same reason once in a while, not for each message."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._at = 0.0

    def log(self, reason: str, about: dict[str, Any]) -> None:
        now = time.monotonic()
        if reason != self._reason or now - self._at >= _LOG_INTERVAL:
            self._reason, self._at = reason, now
            _log_wait(reason, about)


def _log_wait(reason: str, about: dict[str, Any]) -> None:
    log.warning("waiting for a dependency: %s", reason, extra=about)


async def sleep_or_stop(seconds: float, stop: asyncio.Event) -> None:
    """Sleep. Raises ProcessStopping if the process stops meanwhile."""
    if await wait_first(stop.wait(), timeout=seconds):
        raise ProcessStopping()


def error_message(error: Exception) -> str:
    """The message of an error, with the name of its class unless the message is the engine's own.

    It can be logged and written anywhere, even if it contains text from a message that cannot.
    """
    words = driver_message(error) if isinstance(error, StatementError) else text_of(error)
    text = printable_line(mask(" ".join(words.split()))[:500])
    if text and isinstance(error, AttemptFailed | SagaError):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name
