"""Counts how often the producers of this process ask the brokers about the topics that they write to."""

from __future__ import annotations

from typing import Any

import pytest

from saga_activities.kafka import transactional_producer
from saga_activities.kafka.admin import KafkaAdmin


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The topics of each request from now on. A flush makes none, however busy the machine is."""
    identify, looks = KafkaAdmin.identify, []

    def counted(admin: KafkaAdmin, names: Any, timeout: float) -> Any:
        looks.append(sorted(names))
        return identify(admin, names, timeout)

    monkeypatch.setattr(KafkaAdmin, "identify", counted)
    monkeypatch.setattr(transactional_producer, "_FLUSH_SLICE", 60.0)
    return looks
