"""The marks that count the attempts of a record across processes."""

from __future__ import annotations

import pytest

from saga_activities.kafka.truncation import ReadPlace
from saga_workers.trigger.delivery import LARGEST_WINDOW, Delivery, DeliveryMark
from saga_workers.trigger.partition_assignment import AssignedPosition
from saga_workers.trigger.partition_marks import PartitionMarks

TOPIC_ID = "bV1sS0l6QmWc8o3Yx3n0Fg"


@pytest.mark.parametrize(
    "mark",
    [
        DeliveryMark(),
        DeliveryMark(TOPIC_ID),
        DeliveryMark(TOPIC_ID, "a1b2"),
        DeliveryMark("", "a1b2", 64, 7, 2),
        DeliveryMark(TOPIC_ID, "", 64, -1, 0),
        DeliveryMark(TOPIC_ID, read=ReadPlace(7, 0)),
    ],
    ids=str,
)
def test_a_mark_is_read_as_it_was_written(mark: DeliveryMark) -> None:
    assert DeliveryMark.parse(str(mark)) == mark


def test_metadata_of_other_programs_marks_nothing() -> None:
    assert not DeliveryMark.parse("committed by a tool of ours").is_open
    assert not DeliveryMark.parse(None).is_open


def test_an_open_mark_begins_a_window_that_grows_while_the_cause_is_not_in_it() -> None:
    mark, windows = DeliveryMark(TOPIC_ID, "first"), list[int]()
    for number in range(4):
        mark = mark.taken_over(f"reader-{number}")
        windows.append(mark.window)
    assert windows == [64, 256, 1024, LARGEST_WINDOW]
    assert mark.began(7, 2).taken_over("next") == DeliveryMark(TOPIC_ID, "next", LARGEST_WINDOW, 7, 2)
    assert mark.given_up().taken_over("next").window == LARGEST_WINDOW
    assert DeliveryMark(TOPIC_ID).taken_over("next").window == 0


def test_a_reader_that_lives_has_survived_its_last_attempt() -> None:
    assert DeliveryMark(TOPIC_ID, "same", 64, 7, 1).taken_over("same").attempts == 0


def test_each_attempt_is_counted_once_and_failures_are_not_ends() -> None:
    marks = PartitionMarks("me")
    marks.begin([AssignedPosition("orders", 0, 7, DeliveryMark(TOPIC_ID, "me", 64, 7, 2), 9)])
    assert marks.ended(0, 7) == 2
    for _ in range(3):
        assert marks.began(0, 7).attempts == 3
        survived = marks.survived(0, 7)
        assert survived is not None
        assert survived.attempts == 2
    marks.handled(0)
    assert (marks.ended(0, 8), marks.careful_records(0), marks.current(0).attempts) == (0, 63, 0)
    marks.finish(0, at_end=True)
    assert str(marks.given_up(0)) == TOPIC_ID


def test_every_mark_has_the_place_behind_the_newest_record() -> None:
    marks = PartitionMarks("me")
    marks.begin([AssignedPosition("orders", 0, 7, DeliveryMark(TOPIC_ID, "me", 64, read=ReadPlace(5, 1)), 9)])
    assert marks.current(0).place(7) == ReadPlace(5, 1)  # control records are behind it
    marks.read(0, 9, 2)
    marks.read(0, 10, None)  # of brokers that do not tell it
    for mark in (marks.began(0, 7), marks.survived(0, 7), marks.current(0), marks.given_up(0)):
        assert mark is not None
        assert mark.place(7) == ReadPlace(7, 2)
        assert DeliveryMark.parse(str(mark)) == mark


def test_a_record_is_given_up_after_max_attempts() -> None:
    assert Delivery(ended=4).give_up_reason(5) is None
    assert Delivery(ended=5).give_up_reason(5) == "it ended its process 5 times"
    assert Delivery().give_up_reason(1) is None
