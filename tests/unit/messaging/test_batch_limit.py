"""How many events the relay reads at once: many small ones, few large ones."""

from __future__ import annotations

import pytest

from saga_workers.relay.outbox_table import EventRow
from saga_workers.relay.pipeline import BATCH_CHARACTERS, FIRST_BATCH, next_limit


def event(characters: int) -> EventRow:
    return EventRow(1, "e", "t", None, "x" * characters, "{}", "s", "pay", 1, 0.0, None)


@pytest.mark.parametrize(
    ("sizes", "most", "limit"),
    [
        ([100, 200], 5000, 5000),
        ([100, 200], 20, 20),
        ([100, BATCH_CHARACTERS // 1000], 5000, 1000),
        ([BATCH_CHARACTERS], 5000, FIRST_BATCH),
        ([], 5000, FIRST_BATCH),
        ([0], 5000, 5000),
    ],
)
def test_the_largest_event_limits_the_next_batch(sizes: list[int], most: int, limit: int) -> None:
    assert next_limit([event(size) for size in sizes], most) == limit
