"""One attempt as an action sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.actions.events import EventLog, new_event
from sagas.errors import UsageError


@dataclass
class Step:
    """One attempt of one operation of one step.

    ``key`` is the idempotency key: the same for every attempt, different for the undo and the confirm; pass it to
    systems that support idempotency keys. ``forward_key`` is the key of the forward operation in all of them, so that
    an undo can find what the forward operation created. ``id`` is the entry id (``reserve#0``), ``attempt`` counts
    from 1, ``generation`` increases when a step runs again after it was undone.
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
    _hold_refusal: str | None = None
    events: EventLog = field(default_factory=EventLog)
    forward_key: str = ""

    @property
    def sql(self) -> Any:
        """The guard's transaction; see saga_activities.guard.sql_session. Raises UsageError without ``connection=``."""
        if self._sql is None:
            raise UsageError("it has no database for step.sql and step.emit; declare it with @action(…, connection=…)")
        return self._sql

    def heartbeat(self, details: Any = None) -> None:
        """Record a heartbeat of this attempt; ``details`` (JSON) are shown in the Web UI."""
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

        With ``hold`` it is published only after the saga's commit point, and dropped if the step is undone.
        Raises UsageError without a database, for a header that the engine writes itself, or when the action may not
        hold events (``@action(…, holds=True)``). Raises AttemptOver once the function has returned.
        """
        _ = self.sql
        self.events.add(new_event(topic, key, value, headers, hold, self._hold_refusal))
