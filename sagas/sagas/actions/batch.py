"""The view of a batch action (`@action(…, batch=True)`): equal calls of several sagas in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.actions.events import EventLog, new_event


@dataclass
class Item(Mapping[str, Any]):
    """One call of a batch action; a mapping of its arguments: ``item["amount"]``.

    ``key``, ``forward_key``, ``saga_id``, ``id``, ``op``, ``attempt`` and ``generation`` are those of
    :class:`sagas.actions.step.Step`.
    """

    key: str
    saga_id: str
    id: str
    op: str
    attempt: int
    generation: int
    arguments: Mapping[str, Any]
    forward_key: str = ""
    events: EventLog = field(default_factory=EventLog)
    _hold_refusal: str | None = None

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arguments)

    def __len__(self) -> int:
        return len(self.arguments)

    def emit(
        self,
        topic: str,
        *,
        key: str | None = None,
        value: Any = None,
        headers: Mapping[str, str] | None = None,
        hold: bool = False,
    ) -> None:
        """Publish an event if, and only if, this call is done and the transaction commits; see :meth:`Step.emit`."""
        self.events.add(new_event(topic, key, value, headers, hold, self._hold_refusal))


@dataclass
class BatchStep:
    """The transaction that the items of a batch action share."""

    logger: logging.Logger | logging.LoggerAdapter[Any]
    _heartbeat: Callable[[Any], None]
    _sql: Any

    @property
    def sql(self) -> Any:
        """The transaction of all items; see saga_activities.guard.sql_session."""
        return self._sql

    def heartbeat(self, details: Any = None) -> None:
        """Record a heartbeat of this attempt; ``details`` (JSON) are shown in the Web UI."""
        self._heartbeat(details)
