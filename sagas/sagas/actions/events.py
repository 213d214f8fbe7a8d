"""Events that an action or a consumer publishes with its transaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.builtins.messaging import first_reserved_header, reserved_header_message
from sagas.errors import AttemptOver, UsageError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """An event to publish; written to the outbox in the action's own transaction.

    ``hold``: it waits for the saga's commit point, and is dropped if the saga never reaches it. ``type`` is the
    CloudEvents type (None: the topic). ``id`` (at most 36 characters, unique in the outbox) is generated if not given.
    """

    topic: str
    key: str | None
    value: Any
    headers: Mapping[str, str | None] = field(default_factory=dict)
    hold: bool = False
    type: str | None = None
    id: str | None = None


class EventLog:
    """The events of one attempt, until it ends. The thread of a plain `def` may also add to it.

    ``on_late_event`` gets the error of an event that comes too late, so that a transaction that is still open does
    not commit without it.
    """

    def __init__(self, on_late_event: Callable[[BaseException], None] | None = None) -> None:
        self._events: list[Event] = []
        self._over = False
        self._on_late_event = on_late_event
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def add(self, event: Event) -> None:
        """Raises AttemptOver after the end of the attempt."""
        with self._lock:
            if not self._over:
                self._events.append(event)
                return
        error = AttemptOver(f"the attempt has ended, so the event for {event.topic} is not published")
        log.warning("%s; await what emits it before the function returns", error)
        if self._on_late_event is not None:
            self._on_late_event(error)
        raise error

    def end(self) -> None:
        """Refuse further events, because the function has ended."""
        with self._lock:
            self._over = True


def new_event(
    topic: str, key: str | None, value: Any, headers: Mapping[str, str] | None, hold: bool, hold_refusal: str | None
) -> Event:
    """An event of an action. Raises UsageError as :meth:`sagas.actions.step.Step.emit` does."""
    if headers and (header := first_reserved_header(headers)) is not None:
        raise UsageError(reserved_header_message(header))
    if hold and hold_refusal is not None:
        raise UsageError(hold_refusal)
    return Event(topic, key, value, headers or {}, hold)
