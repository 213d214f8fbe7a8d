"""The reason that a service itself gives while it is not ready: shown as soon as it lasts, not only when it is late."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from saga_workers.devstack.service import Service

_INTERVAL = 0.5
"""Seconds between two looks: each is a request, which must not slow the start down."""

_LASTING = 3.0
"""Seconds that a reason stands before it is shown. In a usual start a process waits for others for a moment."""


class ReportedReason:
    """Looks while a service with these ``ports`` starts. ``report`` shows a reason to the user, each one once."""

    def __init__(self, service: Service, ports: Mapping[str, int], report: Callable[[str], Any]) -> None:
        self._service = service
        self._ports = ports
        self._report = report
        self._look_at = time.monotonic() + _INTERVAL
        self._since = 0.0
        self._shown: set[str] = set()
        self.text: str | None = None

    def look(self) -> None:
        """Ask the service, if it is time to, and show its reason if it lasts."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _INTERVAL
        text = self._service.reason(self._ports)
        if text != self.text:
            self.text, self._since = text, now
        if text is not None and text not in self._shown and now - self._since >= _LASTING:
            self._shown.add(text)
            self._report(f"the {self._service.name} is not ready: {text}")
