"""The backoff of a topic that all shards of an outbox find missing."""

from __future__ import annotations

import pytest

from saga_workers.relay.suspended_topics import SuspendedTopics


def test_a_failure_that_several_shards_meet_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    topics, waits = SuspendedTopics(), list[float | None]()
    for _ in range(3):
        assert topics.suspend("orders", "it is missing") is (now == 0.0)
        for _ in range(3):
            assert not topics.suspend("orders", "it is missing")
        waits.append(topics.next_retry(["orders"]))
        assert topics.suspended() == {"orders"}
        now += waits[-1] or 0.0
        assert not topics.suspended()
    assert waits == [2.0, 4.0, 8.0]
    assert topics.resume("orders")
    assert topics.suspend("orders", "it is missing")
    assert topics.next_retry(["orders"]) == 2.0


def test_another_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    topics = SuspendedTopics()
    assert topics.suspend("orders", "it is missing")
    assert topics.suspend("orders", "an ACL is missing")
    assert topics.reasons() == {"orders": "an ACL is missing"}
