"""Trying until a message has had its effect, or certainly never will."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sagas.errors import SagaError

log = logging.getLogger("saga.trigger")

LONGEST_PAUSE = 10.0


class Told(Exception):
    """It did not work this time; the text is a sentence for people."""


class Poison(Exception):
    """This message can never have its effect; the text is the reason."""


class Down(Exception):
    """Something it needs does not answer. It is tried again for as long as that lasts: the message is not to blame."""


class Stopped(Exception):
    """The process is stopping; the message has had no effect that counts, and somebody else will get it."""


async def tried(
    what: str,
    attempt: Callable[[int], Awaitable[None]],
    *,
    stop: asyncio.Event,
    max_attempts: int,
    first_pause: float = 0.2,
) -> str | None:
    """None when an attempt succeeded, else why the message is poison. ``attempt`` is given its number, from 1.

    Down is waited for without limit; any other exception counts as one of ``max_attempts``. Raises Stopped.
    """
    number, failures, waits = 0, 0, 0
    while True:
        number += 1
        try:
            await attempt(number)
        except Poison as error:
            return str(error)
        except Stopped:
            raise
        except Down as error:
            waits += 1
            # At once, so that people see what it waits for, and then ever more seldom.
            if waits & (waits - 1) == 0:
                log.warning("%s waits: %s", what, error)
            pause = min(first_pause * 2 ** (waits - 1), LONGEST_PAUSE)
        except Exception as error:  # noqa: BLE001 - it becomes the reason in the dead letter
            failures += 1
            sentence = sentence_of(error)
            if failures >= max_attempts:
                return sentence
            log.warning("%s: attempt %d of %d failed: %s", what, failures, max_attempts, sentence)
            pause = min(first_pause * 2 ** (failures - 1), LONGEST_PAUSE)
        else:
            return None
        await pause_or_stop(pause, stop)


async def pause_or_stop(seconds: float, stop: asyncio.Event) -> None:
    """Sleep. Raises Stopped when the process stops meanwhile."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
    raise Stopped()


def sentence_of(error: Exception) -> str:
    """What an error says to people; with the name of its class where the words are not our own."""
    text = " ".join(str(error).split())[:500]
    if text and isinstance(error, Told | SagaError):
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name
