"""The story of a saga and its lines in `saga show` tell a decision once, whoever has recorded it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from saga_cli.render.saga_view import view_lines
from saga_workers.serve.console.progress import progress_of
from saga_workers.serve.console.saga_pages import step_rows
from saga_workers.serve.console.story import story_of
from sagas.presentation.access_lines import told_once
from sagas.presentation.styled_text import to_plain
from sagas.protocol.access_view import AccessView
from sagas.protocol.outcomes import PAUSED as PAUSED_TYPE
from sagas.protocol.saga_view import DecisionView, ErrorView, PauseView, SagaView, StepView

DECISION = DecisionView(
    at="2026-03-01T10:00:01Z", who="ada", step="charge#1", decision="retry", reason="the bank is back",
    evidence="they called", arguments={"amount": 1},
)  # fmt: skip
REQUEST = AccessView(
    at="2026-03-01T10:00:00Z", what="resolve", who="ada", reason="the bank is back", detail="charge#1 retry",
    outcome="accepted",
)  # fmt: skip
PAUSE = DecisionView(at="2026-03-01T11:00:01Z", who="eve (unverified)", step="", decision="pause", reason="")
ASKED_PAUSE = AccessView(at="2026-03-01T11:00:00Z", what="pause", who="eve", outcome="paused")
VIEW = SagaView(
    id="order-1",
    saga="order",
    state="RUNNING",
    steps=(StepView(id="charge#1", step="charge", name="Charge the card", uses="http", state="RUNNING"),),
    operator=(DECISION, PAUSE),
    accesses=(REQUEST, ASKED_PAUSE),
)


def story(view: SagaView) -> list[str]:
    return [event.text for event in story_of(view).first]


def test_a_decision_over_http_is_told_once() -> None:
    words = "Charge the card: try again, with other arguments, because: the bank is back; known from: they called"
    assert story(VIEW) == [f"ada decided about {words}", "eve decided: pause"]
    shown = "\n".join(to_plain(line) for line in view_lines(VIEW, now=datetime.now(UTC)))
    assert shown.count("the bank is back") == 1
    assert "eve: pause" in shown, "the token proves who it was"
    assert "has asked to" not in shown


HELD = StepView(
    id="ride", step="ride", name="Order a courier", uses="http", state="RUNNING", started_at="2026-03-01T10:00:00Z"
)
PAUSED = PauseView(at="2026-03-01T09:00:00Z", who="kim", kind="connection", name="courier", held=("ride",))
HELD_BACK = ErrorView(type=PAUSED_TYPE, message="the connection courier is paused")


def test_a_step_that_a_pause_holds_has_neither_begun_nor_failed() -> None:
    view = SagaView(id="b-1", saga="b", state="RUNNING", phase="forward", paused=PAUSED, steps=(HELD,))
    assert story(view) == ["Order a courier: held back by a pause"]
    assert list(progress_of(view).would_undo) == []
    ended = replace(HELD, state="NOTHING_TO_UNDO", outcome="failed", ended_at="2026-03-01T10:02:00Z", error=HELD_BACK)
    view = SagaView(id="b-1", saga="b", state="COMPENSATED", phase="backward", steps=(ended,))
    events = story_of(view).first
    assert [(event.text, event.style) for event in events] == [
        ("Order a courier: held back by a pause", ""),
        ("Order a courier: held back, nothing happened", "info"),
    ]
    begun = replace(view, steps=(replace(ended, attempts=2),))
    assert story(begun)[0] == "Order a courier: began"


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, outcome="refused"),
        replace(REQUEST, outcome=None),
        replace(REQUEST, who="bob"),
        replace(REQUEST, detail="charge#2 retry"),
        replace(REQUEST, detail="charge#1 skip"),
        replace(REQUEST, at="2026-03-01T09:00:00Z"),
        replace(REQUEST, what="signal"),
    ],
)
def test_other_requests_are_told_beside_the_decision(other: AccessView) -> None:
    told = told_once(replace(VIEW, accesses=(other, ASKED_PAUSE)))
    assert told.accesses == (other,)
    assert told.operator[0] == DECISION


def test_two_requests_for_the_same_are_two_decisions() -> None:
    again = replace(DECISION, at="2026-03-01T10:00:30Z")
    twice = replace(VIEW, operator=(DECISION, again), accesses=(REQUEST, replace(REQUEST, at="2026-03-01T10:00:29Z")))
    assert told_once(twice).accesses == ()
    assert len(told_once(twice).operator) == 2
    alone = replace(twice, operator=(DECISION,))
    assert len(told_once(alone).accesses or ()) == 1


def test_what_happened_at_the_time_of_the_commit_is_told_in_its_order() -> None:
    at = "2026-03-01T10:00:01Z"
    before, after = "2026-03-01T10:00:00Z", "2026-03-01T10:00:02Z"
    times = (("reserve", before, before), ("pay", before, at), ("mail", at, at), ("ship", at, after))
    steps = tuple(
        StepView(id=id, step=id, uses="http", state="DONE", outcome="done", started_at=begin, ended_at=end)
        for id, begin, end in times
    )
    view = SagaView(
        id="o-1", saga="o", state="COMPLETED", started_at=before, committed_at=at, ended_at=after, steps=steps
    )
    told = story(view)
    passed = "The point of no return was passed"
    assert told[-7:-1] == ["pay: done", passed, "mail: began", "mail: done", "ship: began", "ship: done"]
    instant = replace(steps[1], started_at=at)
    told = story(replace(view, steps=(steps[0], instant, *steps[2:])))
    assert told[3:6] == ["pay: began", "pay: done", passed]


@pytest.mark.parametrize(
    ("state", "phase", "ended_at", "words"),
    [
        ("COMPENSATED", "backward", "2026-03-01T10:00:00Z", "not reached"),
        ("COMPENSATING", "backward", None, "not reached"),
        ("TERMINATED", "forward", "2026-03-01T10:00:00Z", "not reached"),
        ("RUNNING", "forward", None, "pending"),
    ],
)
def test_a_step_that_will_never_begin_is_not_pending(state: Any, phase: Any, ended_at: str | None, words: str) -> None:
    step = StepView(id="ship", step="ship", uses="http", state="PENDING")
    view = SagaView(id="o-1", saga="o", state=state, phase=phase, ended_at=ended_at, steps=(step,))
    now = datetime.now(UTC)
    (row,) = (line for line in map(to_plain, view_lines(view, now=now)) if "ship" in line)
    assert words in row
    assert [each.forward for each in step_rows(view, now)] == [words]
