"""The story of a saga: what happened, in the order of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from saga_workers.serve.console.words import REQUEST_WORDS, STATE_WORDS
from sagas.presentation.access_lines import access_text, told_once
from sagas.presentation.step_text import is_held_back
from sagas.presentation.styled_text import error_text, parse_timestamp
from sagas.presentation.web_ui_text import no_effect_text, was_held
from sagas.protocol.saga_view import DecisionView, ParkedView, SagaView, StepView
from sagas.text.shortening import shorten

MAX_EVENTS = 200
"""Events of a story that are shown: half of them from its begin, half from its end."""

_MAX_TEXT = 400


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """Something that happened. ``at`` is a timestamp, ``style`` a class of the style sheet."""

    at: str
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """The events before and after those that are left out."""

    first: tuple[StoryEvent, ...]
    omitted: int
    last: tuple[StoryEvent, ...]


def story_of(view: SagaView) -> Story:
    """The events that the view has times for."""
    timed = [(time, event) for event in _events(told_once(view)) if (time := parse_timestamp(event.at)) is not None]
    events = tuple(event for _, event in sorted(timed, key=lambda pair: pair[0]))
    if len(events) <= MAX_EVENTS:
        return Story(events, 0, ())
    half = MAX_EVENTS // 2
    return Story(events[:half], len(events) - 2 * half, events[-half:])


def _events(view: SagaView) -> Iterator[StoryEvent]:
    if view.started_at:
        yield StoryEvent(view.started_at, "The saga started")
    before, after = _around_commit(view)
    for step in before:
        yield from _step_events(step, waits_for_resume=is_held_back(view, step))
    if view.committed_at:
        yield StoryEvent(view.committed_at, "The point of no return was passed")
    for step in after:
        yield from _step_events(step, waits_for_resume=is_held_back(view, step))
    names = {step.id: shorten(step.name or step.id) for step in view.steps}
    for parked in view.parked:
        yield _parked_event(parked, names.get(parked.step, parked.step))
    for decision in view.operator:
        yield _decision_event(decision, names.get(decision.step, decision.step))
    for notification in view.notifications:
        if notification.ended_at:
            state = (notification.state or "ended").lower()
            yield StoryEvent(notification.ended_at, f"The notification {notification.id}: {state}")
    for access in view.accesses or ():
        yield StoryEvent(access.at, shorten(f"{access.who} {access_text(access)}", _MAX_TEXT))
    if view.ended_at:
        words = STATE_WORDS.get(view.state)
        yield StoryEvent(view.ended_at, f"The saga is over: {words.title if words else view.state}", view.state)


def _around_commit(view: SagaView) -> tuple[list[StepView], list[StepView]]:
    """The steps that began before the commit point, and the others. Events of one time are told in this order, so the
    steps that begin with the commit follow it, and the one that has committed, which may begin and end with it, does
    not.
    """
    committed = parse_timestamp(view.committed_at)
    if committed is None:
        return list(view.steps), []
    ends = [number for number, step in enumerate(view.steps) if parse_timestamp(step.ended_at) == committed]
    last = ends[0] if ends else -1
    before, after = [], []
    for number, step in enumerate(view.steps):
        began = parse_timestamp(step.started_at)
        (after if number > last and began is not None and began >= committed else before).append(step)
    return before, after


def _step_events(step: StepView, *, waits_for_resume: bool) -> Iterator[StoryEvent]:
    name = shorten(step.name or step.id)
    held_until_end = was_held(step)
    if step.started_at:
        never_called = waits_for_resume or (held_until_end and not step.attempts)
        word = "held back by a pause" if never_called else "began"
        yield StoryEvent(step.started_at, f"{name}: {word}")
    if step.ended_at and held_until_end:
        yield StoryEvent(step.ended_at, f"{name}: {no_effect_text(step)}", "info")
    elif step.ended_at and step.outcome:
        why = f": {error_text(step.error)}" if step.error and step.outcome != "done" else ""
        style = "" if step.outcome == "done" else "fail"
        yield StoryEvent(step.ended_at, shorten(f"{name}: {step.outcome}{why}", _MAX_TEXT), style)
    undo, confirm = step.compensation, step.confirmation
    if undo and undo.ended_at:
        yield StoryEvent(undo.ended_at, f"{name}: undo {undo.state.lower().replace('_', ' ')}", "info")
    if confirm and confirm.ended_at:
        yield StoryEvent(confirm.ended_at, f"{name}: confirmation {confirm.state.lower().replace('_', ' ')}")


def _decision_event(decision: DecisionView, name: str) -> StoryEvent:
    about = f" about {name}" if name else ""
    given = "" if decision.arguments is None else ", with other arguments"
    given += ", with a corrected definition" if decision.definition else ""
    because = f", because: {decision.reason}" if decision.reason else ""
    proof = f"; known from: {decision.evidence}" if decision.evidence else ""
    word = REQUEST_WORDS.get(decision.decision, decision.decision).lower()
    parked = f"; it was parked: {decision.error}" if decision.error else ""
    text = f"{decision.who} decided{about}: {word}{given}{because}{proof}{parked}"
    return StoryEvent(decision.at, shorten(text, _MAX_TEXT))


def _parked_event(parked: ParkedView, name: str) -> StoryEvent:
    what = {"undo": "The undo of ", "confirm": "The confirmation of "}.get(parked.op, "")
    return StoryEvent(parked.since, shorten(f"{what}{name} waits for a decision: {parked.why}", _MAX_TEXT), "warn")
