"""The story of a saga and its lines in `saga show` tell a decision once, whoever has recorded it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from saga_cli.render.saga_view import view_lines
from saga_workers.serve.console.story import story_of
from sagas.presentation.access_lines import told_once
from sagas.presentation.styled_text import to_plain
from sagas.protocol.access_view import AccessView
from sagas.protocol.saga_view import DecisionView, SagaView, StepView

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
