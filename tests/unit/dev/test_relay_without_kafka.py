"""A relay that delivers enqueued rows needs Temporal and no Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.devstack.stack import Stack, refuse_incomplete
from sagas.errors import UsageError
from sagas.settings import load_settings

SETTINGS = '[connections.shop]\nurl = "sqlite:///shop.db"\n'


def test_a_relay_that_delivers_enqueued_rows_starts_without_kafka(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text(f'{SETTINGS}[enqueue]\nconnections = ["shop"]\n')
    settings = load_settings(tmp_path)
    refuse_incomplete(settings, ["temporal", "worker", "relay"], [])
    with pytest.raises(UsageError, match="the relay cannot start without temporal"):
        refuse_incomplete(settings, ["relay"], [])
    assert "relay" in Stack(settings, lambda _: None)._needed_services()


@pytest.mark.parametrize("more", ["", '[enqueue]\nconnections = ["shop"]\ndelivered_by = "worker"\n'])
def test_another_relay_needs_kafka(tmp_path: Path, more: str) -> None:
    (tmp_path / "saga.toml").write_text(SETTINGS + more)
    settings = load_settings(tmp_path)
    with pytest.raises(UsageError, match="the relay cannot start without kafka"):
        refuse_incomplete(settings, ["temporal", "relay"], [])
    assert "relay" not in Stack(settings, lambda _: None)._needed_services()
