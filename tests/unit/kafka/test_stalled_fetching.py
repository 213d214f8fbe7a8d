"""A client library that fetches nothing, and what does not count as that; the clock and the brokers are the test's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from saga_activities.kafka.admin import KafkaOperationError, PartitionOffsets
from saga_workers.trigger import stalled_fetching
from saga_workers.trigger.membership import Membership
from saga_workers.trigger.stalled_fetching import PATIENCE

STALLED = "nothing is fetched although records wait"


class Cluster:
    """The brokers of a topic whose partitions end at ``end``; ``away``: they do not answer."""

    def __init__(self) -> None:
        self.end, self.away = 5, False

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        if self.away:
            raise KafkaOperationError(f"{topic}: no answer")
        return {partition: PartitionOffsets(0, self.end, self.end) for partition in (0, 1)}


class Watched:
    """A member that looks every 10 seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.now = Cluster(), 1000.0
        self._member = Membership("topic")
        self._member.assigned([0, 1])
        monkeypatch.setattr(stalled_fetching.time, "monotonic", lambda: self.now)

    def look(self, read_to: Mapping[int, int | None], **state: bool) -> str | None:
        self.now += 10.0
        cluster: Any = self.cluster
        return self._member.why_to_join_again(cluster, "group", read_to, **state)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_partition_that_is_not_fetched_is_noticed(watched: Watched) -> None:
    seen = [watched.look({0: 5, 1: 3}) for _ in range(4)]
    assert seen == [None, None, None, STALLED]


def test_what_goes_on_slowly_is_not_stalled(watched: Watched) -> None:
    watched.cluster.end = 100
    assert [watched.look({0: offset, 1: offset}) for offset in range(20)] == [None] * 20


def test_time_without_brokers_does_not_count(watched: Watched) -> None:
    assert watched.look({0: 3}) is None
    watched.cluster.away = True
    for _ in range(10):
        with pytest.raises(KafkaOperationError):
            watched.look({0: 3})
    watched.cluster.away = False
    assert [watched.look({0: 3}) for _ in range(4)] == [None, None, None, STALLED]


def test_time_in_which_the_process_was_stopped_does_not_count(watched: Watched) -> None:
    assert watched.look({0: 3}) is None
    watched.now += 100 * PATIENCE
    assert watched.look({0: 3}) is None


def test_a_paused_reader_begins_again(watched: Watched) -> None:
    assert watched.look({0: 3}) is None
    assert [watched.look({0: 3}, is_busy=True, is_paused=True) for _ in range(2)] == [None, None]
    assert [watched.look({0: 3}) for _ in range(3)] == [None, None, None]


def test_a_busy_reader_is_not_interrupted(watched: Watched) -> None:
    assert [watched.look({0: 3}, is_busy=True) for _ in range(9)] == [None] * 9
