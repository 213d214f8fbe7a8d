"""Lines about a step, as `saga explain` prints them: for a terminal or a page."""

from __future__ import annotations

from typing import NamedTuple

from sagas.definition.model import StepDefinition, has_effect
from sagas.presentation.explain import (
    Explanation,
    describe_compensation,
    describe_confirm,
    describe_kind,
    describe_rejection,
    describe_savepoint,
    explain_guarantee,
)

KIND_STYLES = {"compensatable": "green", "pivot": "bold magenta", "retriable": "cyan", "read": "dim"}
GUARANTEE_STYLES = {"guarded": "green", "two-phase": "green", "participant-keyed": "yellow", "at-least-once": "red"}


class Phrase(NamedTuple):
    """A piece of a line. ``style``: names of styles of a terminal, which are classes of a page."""

    text: str
    style: str = ""


def step_phrases(plan: Explanation, step: StepDefinition) -> list[list[Phrase]]:
    """The lines about a step, each in pieces."""
    steps = plan.definition.steps
    number = steps.index(step)
    lines = [[Phrase(step.do.uses), Phrase(f" · {describe_kind(step)}", KIND_STYLES[step.kind])]]
    if number and step.needs != (steps[number - 1].id,):
        lines.append([Phrase(f"after {', '.join(step.needs)}" if step.needs else "starts immediately")])
    if step.for_each is not None:
        lines.append([Phrase(f"once for each of {step.for_each}, {step.max_parallel} at a time")])
    if step.if_ is not None:
        lines.append([Phrase(f"only if {step.if_}")])
    described = (
        ("↩", describe_compensation(step)),
        ("✔", describe_confirm(step)),
        ("⟲", describe_savepoint(step)),
        ("✖", describe_rejection(step)),
    )
    lines += [[Phrase(f"{sign} {phrase}")] for sign, phrase in described if phrase is not None]
    if step.on_failure != "compensate":
        words = {"park": "waits for an operator", "continue": "the saga continues without it"}
        lines.append([Phrase(f"on failure: {words[step.on_failure]}")])
    # The guarantee of a step without an effect does not matter.
    word = "" if not has_effect(step) else f"{step.guarantee}: "
    lines.append([Phrase(word, GUARANTEE_STYLES[step.guarantee]), Phrase(explain_guarantee(step))])
    why = plan.why_not_batchable(step)
    lines.append([Phrase("batchable" if why is None else f"not batchable: {why}", "dim")])
    return lines
