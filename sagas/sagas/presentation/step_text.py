"""The steps of a saga in words: what became of each, forward and backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from sagas.presentation.styled_text import Span, error_text, format_duration, parse_timestamp, progress_text, to_line
from sagas.presentation.web_ui_text import no_effect_text
from sagas.protocol.saga_view import OperationView, ParkedView, SagaView, StepView

_UNDO_TEXTS = {
    "PENDING": "",
    "RUNNING": "being undone",
    "DONE": "undone",
    "NOTHING_TO_UNDO": "nothing to undo",
    "REJECTED": "undo refused",
    "FAILED": "undo failed",
    "UNKNOWN": "undo: outcome unknown",
    "PARKED": "undo PARKED",
    "SKIPPED": "undo skipped",
}
_MAX_ITEMS = 12
MAX_INLINE = 80
"""Characters of an error in the row of its step; a longer one stands in a line of its own, up to its end."""


def rows_to_show(steps: Iterable[StepView]) -> Iterable[StepView | str]:
    """All steps; of a long for_each those with something to tell, and how many others there are."""
    groups: dict[str, list[StepView]] = {}
    for step in steps:
        groups.setdefault(step.step, []).append(step)
    for members in groups.values():
        if len(members) <= _MAX_ITEMS:
            yield from members
            continue
        usual, count = Counter(_state_pair(member) for member in members).most_common(1)[0]
        telling = [member for member in members if _state_pair(member) != usual]
        yield from telling[: 2 * _MAX_ITEMS]
        if len(telling) > 2 * _MAX_ITEMS:
            yield f"{members[0].step}: {len(telling) - 2 * _MAX_ITEMS} more with other states"
        words = usual[0].lower() + (f", {_UNDO_TEXTS.get(usual[1], '')}" if _UNDO_TEXTS.get(usual[1]) else "")
        yield f"{members[0].step}: {count} of {len(members)} items {words}"


def _state_pair(step: StepView) -> tuple[str, str]:
    return step.state, step.compensation.state if step.compensation else ""


def is_held_back(view: SagaView, step: StepView) -> bool:
    """True for a step whose first call a pause holds back: nothing of it has begun."""
    held = view.paused is not None and step.id in view.paused.held
    return held and step.state == "RUNNING" and not step.attempts


def is_unreached(view: SagaView, step: StepView) -> bool:
    """True for a step that has not begun and never will: its saga has ended, or goes back to its start."""
    goes_back = view.phase == "backward" and view.repeated_from is None
    return step.state == "PENDING" and (goes_back or view.ended_at is not None)


_SOON = 10.0
"""Seconds until an attempt whose time is not worth a word."""


def forward_text(step: StepView, now: datetime) -> str:
    """The state of the step itself, with its attempts, its duration, and a short error while it is not done; whoever
    prints the row tells a longer one elsewhere.
    """
    words = [_forward_state(step)]
    if (step.attempts or 0) > 1:
        words.append(f"{step.attempts} attempts")
    if (step.generation or 1) > 1:
        words.append(f"generation {step.generation}")
    started, ended = parse_timestamp(step.started_at), parse_timestamp(step.ended_at)
    if started is not None and (ended is not None or step.state == "RUNNING"):
        words.append(format_duration(ended or now, started))
    if step.progress:
        words.append(to_line(progress_text(step.progress), 120))
    following = parse_timestamp(step.next_attempt_at)
    if following is not None and (following - now).total_seconds() > _SOON:
        words.append(f"next attempt in {format_duration(following, now)}")
    if step.error and step.state not in ("DONE", "CONFIRMED", "CONFIRMING"):
        text = error_text(step.error)
        words += [to_line(text, MAX_INLINE)] if len(text) <= MAX_INLINE else []
    return ", ".join(words)


def _forward_state(step: StepView) -> str:
    """Return what happened forward; what happened backward stands in the next column."""
    if without_effect := no_effect_text(step):
        return without_effect
    if step.state in ("COMPENSATING", "COMPENSATED", "PARKED") and step.outcome:
        return step.outcome if step.state != "PARKED" else f"{step.outcome}, parked"
    return step.state.lower()


def undo_span(step: StepView) -> Span:
    """The state of its undo or of its confirm, with a style; empty before either has begun."""
    undo, confirm = step.compensation, step.confirmation
    if confirm and confirm.state not in ("PENDING", "DONE"):
        return (f"✔ confirm {confirm.uses}: {confirm.state.lower()}{_attempts_text(confirm)}", "yellow")
    if not undo:
        return ("", "")
    words = _UNDO_TEXTS[undo.state]
    if not words:
        return ("", "")
    style = "red" if undo.state in ("PARKED", "REJECTED", "FAILED", "UNKNOWN") else "yellow"
    return (f"↩ {words} ({undo.uses}{_attempts_text(undo)})", style)


def failed_calls(step: StepView) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The operations of a step that have failed so far, each with the arguments of its call."""
    for op, call in (("do", step), ("undo", step.compensation), ("confirm", step.confirmation)):
        if call is not None and call.error is not None and call.arguments is not None:
            yield op, call.arguments


def parked_arguments(view: SagaView, parked: ParkedView) -> Mapping[str, Any] | None:
    """The arguments with which a parked operation was called; None if it was not called, or a nested saga waits."""
    step = next((step for step in view.steps if step.id == parked.step), None)
    if step is None or parked.step in view.blocked_steps:
        return None
    call = {"do": step, "undo": step.compensation, "confirm": step.confirmation}[parked.op]
    return call.arguments if call is not None else None


def _attempts_text(operation: OperationView) -> str:
    times = f", {operation.attempts} attempts" if (operation.attempts or 0) > 1 else ""
    if operation.state != "RUNNING" or not operation.error:
        return times
    return f"{times}: {to_line(error_text(operation.error), MAX_INLINE)}"
