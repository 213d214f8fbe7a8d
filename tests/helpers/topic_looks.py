"""Counts how often the producers of this process ask the brokers about the topics that they write to."""

from __future__ import annotations

from typing import Any

import pytest

from saga_activities.kafka import topic_changes, transactional_producer
from saga_activities.kafka.admin import KafkaAdmin


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The topics of each request from now on. A slow flush makes none, however busy the machine is."""
    begin_identify, looks = KafkaAdmin.begin_identify, []

    def counted(admin: KafkaAdmin, names: Any, timeout: float) -> Any:
        looks.append(sorted(names))
        return begin_identify(admin, names, timeout)

    monkeypatch.setattr(KafkaAdmin, "begin_identify", counted)
    monkeypatch.setattr(transactional_producer, "_FLUSH_SLICE", 60.0)
    monkeypatch.setattr(topic_changes, "_WRITE_TIME", 60.0)
    return looks
