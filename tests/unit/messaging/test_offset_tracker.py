"""Offsets that may be committed while messages end in any order."""

from __future__ import annotations

import random

from saga_workers.trigger.offset_tracker import OffsetTracker


def test_the_lowest_open_offset_limits_the_commit() -> None:
    progress = OffsetTracker()
    assert progress.to_commit() is None
    for offset in (5, 6, 9):  # a control marker, or an aborted record, leaves a gap
        progress.add(offset)
    assert progress.position == 5
    progress.complete(9)
    progress.complete(6)
    assert progress.position == 5
    progress.complete(5)
    assert progress.to_commit() == 10
    progress.mark_committed(10)
    assert progress.to_commit() is None


def test_the_end_of_a_partition_is_past_its_control_markers() -> None:
    progress = OffsetTracker()
    progress.add(3)
    progress.skip_to(6)
    assert progress.position == 3
    progress.complete(3)
    assert progress.position == 6


def test_the_commit_never_passes_an_open_offset() -> None:
    choose = random.Random(7)
    for _ in range(300):
        progress, open_ = OffsetTracker(), set()
        offset = choose.randrange(100)
        for _ in range(60):
            if choose.random() < 0.5 or not open_:
                offset += choose.choice((1, 1, 1, 3))
                progress.add(offset)
                open_.add(offset)
            else:
                completed = choose.choice(sorted(open_))
                open_.remove(completed)
                progress.complete(completed)
            assert progress.position == (min(open_) if open_ else offset + 1)


def test_a_message_in_flight_was_read_although_it_would_be_read_again_after_a_crash() -> None:
    progress = OffsetTracker(4)
    assert (progress.position, progress.read_to) == (4, 4)
    progress.add(4)
    assert (progress.position, progress.read_to) == (4, 5)
