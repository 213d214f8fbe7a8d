"""`saga doctor` about an outbox."""

from __future__ import annotations

from saga_workers.doctor.checks import _event_results
from saga_workers.relay.outbox_table import WaitingEvents
from saga_workers.relay.undecided_events import UndecidedEvent


def test_events_within_the_relay_delay_are_not_reported() -> None:
    assert not list(_event_results("shop", [], WaitingEvents(3, 12.0)))


def test_unpublished_events_are_reported_with_a_hint() -> None:
    [late] = _event_results("shop", [], WaitingEvents(3, 734.4))
    assert (late.check, late.ok) == ("relay of shop", False)
    assert late.message == "3 events are not published, the oldest has waited for 734 s"
    assert late.help is not None
    assert "saga relay --status" in late.help


def test_refused_and_late_events_are_both_reported() -> None:
    held = UndecidedEvent("e-1", "HELD", "told", None, "gone-1", "tell", 5.0, 14, "nobody knows")
    assert [result.check for result in _event_results("shop", [held], WaitingEvents(1, 61.0))] == [
        "events of shop",
        "relay of shop",
    ]
