"""What an attempt is doing, for people: told with its heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_activities.attempt import Attempt


class Progress:
    """The part of the work an attempt is at, and how far it is with it."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._told: dict[str, Any] = {}

    def say(self, doing: str) -> None:
        """The next part of the work has begun."""
        self._told = {"doing": doing}
        self._attempt.heartbeat(self._told)

    def add(self, values: Mapping[str, Any]) -> None:
        """How far it is."""
        self._told = {**self._told, **values}
        self._attempt.heartbeat(self._told)
