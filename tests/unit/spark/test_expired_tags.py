"""Tags of an Iceberg table are removed when they are old by two clocks, so that a wrong one removes none."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.refs import SnapshotRefType

from saga_spark.sinks.iceberg.snapshot_history import TAG_MAX_AGE, expired_tags

NOW = 1_780_000_000.0
DAY = 86_400.0


def table(*, last_commit: float) -> Any:
    """A table with a tag of a day, and one that is a day older than tags may be."""
    ages = {"saga-new": DAY, "saga-old": TAG_MAX_AGE.total_seconds() + DAY}
    snapshots = {name: SimpleNamespace(timestamp_ms=(NOW - age) * 1000) for name, age in ages.items()}
    refs = {name: SimpleNamespace(snapshot_ref_type=SnapshotRefType.TAG, snapshot_id=name) for name in ages}
    return SimpleNamespace(refs=refs, snapshot_by_id=snapshots.get, last_updated_ms=last_commit * 1000)


@pytest.mark.parametrize(
    ("here", "last_commit", "expired"),
    [
        (NOW, NOW, ["saga-old"]),
        (NOW + 365 * DAY, NOW, ["saga-old"]),
        (NOW, NOW + 365 * DAY, ["saga-old"]),
        (NOW - 365 * DAY, NOW, []),
        (NOW, NOW - 365 * DAY, []),
    ],
)
def test_a_clock_that_is_ahead_removes_no_tag(
    here: float, last_commit: float, expired: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: here)
    assert expired_tags(table(last_commit=last_commit)) == expired
