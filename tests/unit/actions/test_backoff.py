"""The delays between the attempts of the engine's own work."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import pytest

from saga_activities import concurrency
from saga_activities.concurrency import Backoff


def test_delays_grow_up_to_the_longest() -> None:
    assert list(islice(Backoff(0.2, 5.0), 7)) == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [Backoff(1.0, 9.0, factor=3.0).delay(attempt) for attempt in (0, 1, 2, 1_000_000)] == [1.0, 3.0, 9.0, 9.0]


def test_delays_restart_after_a_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(concurrency, "time", SimpleNamespace(monotonic=lambda: now))
    delays = Backoff(1.0, 4.0).restarting()
    assert [next(delays) for _ in range(4)] == [1.0, 2.0, 4.0, 4.0]
    now = 8.0
    assert next(delays) == 4.0
    now = 16.1
    assert [next(delays) for _ in range(2)] == [1.0, 2.0]
