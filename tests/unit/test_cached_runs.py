"""The runs that leave a worker's memory when the inputs in it are too large together."""

from __future__ import annotations

from saga_workers.worker.cached_runs import CachedRuns


def cached(max_bytes: int) -> tuple[CachedRuns, list[str]]:
    runs, evicted = CachedRuns(max_bytes), []
    runs.evict = evicted.append
    return runs, evicted


def test_the_oldest_large_run_leaves() -> None:
    runs, evicted = cached(100)
    for name, size in (("small", 2), ("first", 50), ("second", 48)):
        runs.add(name, size)
    assert evicted == []
    runs.add("third", 10)
    assert evicted == ["first"]


def test_a_run_larger_than_the_limit_is_kept_alone() -> None:
    runs, evicted = cached(100)
    runs.add("huge", 500)
    assert evicted == []
    runs.add("small", 1)
    assert evicted == ["huge"]


def test_a_run_that_has_left_counts_no_more() -> None:
    runs, evicted = cached(100)
    runs.add("first", 90)
    runs.discard("first")
    runs.discard("first")
    runs.add("second", 90)
    assert evicted == []


def test_a_run_that_comes_again_counts_once() -> None:
    runs, evicted = cached(100)
    for _ in range(3):
        runs.add("first", 40)
    runs.add("second", 60)
    assert evicted == []
