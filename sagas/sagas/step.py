"""What an action is told about the attempt it makes, and what it may use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.builtins_messaging import refused_header, why_refused
from sagas.errors import UsageError

ENVELOPE = "_saga"
"""The argument under which every participant is told who asks, beside those of ``with``."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event to be published; written to the outbox in the action's own transaction.

    ``hold``: it waits for the saga's commit point, and is dropped if that never comes. ``type`` is the CloudEvents
    type (None: the topic). ``id`` (at most 36 characters, unique in the outbox) is drawn unless the caller gives one.
    """

    topic: str
    key: str | None
    value: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: bool = False
    type: str | None = None
    id: str | None = None


@dataclass
class Step:
    """One attempt of one operation of one step.

    ``key`` is the idempotency key: the same for every attempt, different for the undo and the confirm; give it to
    systems that know idempotency keys. ``forward_key`` is the key of the forward call in all of them: an undo finds by
    it what was made under ``key``. ``id`` is the ledger id (``reserve#0``), ``attempt`` counts from 1,
    ``generation`` grows when a step runs again after it was undone.
    """

    key: str
    saga_id: str
    id: str
    op: str
    attempt: int
    generation: int
    logger: logging.Logger | logging.LoggerAdapter[Any]
    _heartbeat: Callable[[Any], None]
    _sql: Any = None
    _refuses_hold: str | None = None
    events: list[Event] = field(default_factory=list)
    forward_key: str = ""

    @property
    def sql(self) -> Any:
        """The guard's transaction; see saga_activities.guard.sql_handle. Raises UsageError without ``connection=``."""
        if self._sql is None:
            raise UsageError(
                "this action has no database: say which one with @action(…, connection=…)",
            )
        return self._sql

    def heartbeat(self, details: Any = None) -> None:
        """Tell the server that this attempt is alive; ``details`` (JSON) are shown in the Web UI."""
        self._heartbeat(details)

    def emit(
        self,
        topic: str,
        *,
        key: str | None = None,
        value: Any = None,
        headers: Mapping[str, str] | None = None,
        hold: bool = False,
    ) -> None:
        """Publish an event if, and only if, this action's transaction commits.

        ``hold``: and only when the saga has passed its commit point; the event is dropped if the step is undone.
        Raises UsageError without a database, for a header that the engine writes itself, or when the action may not
        hold events (``@action(…, holds=True)``).
        """
        _ = self.sql
        if headers and (header := refused_header(headers)) is not None:
            raise UsageError(why_refused(header))
        if hold and self._refuses_hold is not None:
            raise UsageError(self._refuses_hold)
        self.events.append(Event(topic, key, value, headers or {}, hold))
