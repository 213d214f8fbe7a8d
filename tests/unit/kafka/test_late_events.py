"""What `saga doctor` says of an outbox."""

from __future__ import annotations

from saga_workers.doctor.checks import _event_results
from saga_workers.relay.held_events import UndecidedEvent
from saga_workers.relay.outbox_table import WaitingEvents


def test_nothing_is_said_of_events_that_wait_as_long_as_a_relay_takes() -> None:
    assert not list(_event_results("shop", [], WaitingEvents(3, 12.0)))


def test_events_that_nobody_publishes_are_told_with_where_the_reason_is() -> None:
    [late] = _event_results("shop", [], WaitingEvents(3, 734.4))
    assert (late.check, late.ok) == ("relay of shop", False)
    assert late.message == "3 events are not published, the oldest has waited for 734 s"
    assert late.help is not None
    assert "saga relay --status" in late.help


def test_both_are_told() -> None:
    held = UndecidedEvent("e-1", "HELD", "told", None, "gone-1", "tell", 5.0, 14, "nobody knows")
    assert [one.check for one in _event_results("shop", [held], WaitingEvents(1, 61.0))] == [
        "events of shop",
        "relay of shop",
    ]
