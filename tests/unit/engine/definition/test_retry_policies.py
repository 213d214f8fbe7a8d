"""Retry policies as Temporal takes them, which has no list of intervals."""

from __future__ import annotations

import pytest

from sagas.definition.model import Retry, exponential


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ((10.0, 10.0), (10.0, 1.0, 10.0)),
        ((15.0,), (15.0, 1.0, 15.0)),
        ((1.0, 5.0, 16.0), (1.0, 4.0, 16.0)),
        ((8.0, 2.0), (8.0, 1.0, 8.0)),
        ((0.0, 0.0), (0.001, 1.0, 0.001)),
    ],
)
def test_intervals_become_a_growth_from_the_first_to_the_last(
    intervals: tuple[float, ...], expected: tuple[float, float, float]
) -> None:
    retry = exponential(Retry(max_attempts=4, intervals=intervals))
    assert (retry.initial_interval, retry.backoff_coefficient, retry.max_interval) == pytest.approx(expected)
    assert (retry.max_attempts, retry.intervals) == (4, None)


def test_a_policy_without_intervals_stays() -> None:
    retry = Retry(max_attempts=3, initial_interval=2.0, backoff_coefficient=3.0, max_interval=20.0)
    assert exponential(retry) == retry
