"""Effects of which nobody knows whether they are there, and which nothing undoes.

Such a step has no undo, as a pivot without a guard. A person may decide that it has not happened; then the saga ends
COMPENSATED by this word alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from sagas.protocol.payloads import idempotency_key
from sagas.protocol.saga_view import SagaView, StepView
from sagas.text.exact_json import encode_json
from sagas.text.shortening import shorten_middle

COUNTS_AS_ABSENT = "counts as not happened"
"""A part of the text about such an effect."""

_MAX_CALL = 400
"""Characters of the call."""


def unproven_steps(view: SagaView) -> list[StepView]:
    """The steps whose effect is unknown, and stays if it is there. A residue says the same of its own steps."""
    named = {row.step for row in view.residue if row.saga is None}
    return [step for step in view.steps if step.outcome == "unknown" and _has_no_undo(step) and step.id not in named]


def undecided_steps(view: SagaView) -> list[StepView]:
    """The steps that decide whether a cancel has an effect: under way, without an undo, as a pivot is."""
    if view.phase != "forward" or view.ended_at is not None:
        return []
    return [
        step for step in view.steps if _has_no_undo(step) and (step.state == "RUNNING" or step.outcome == "unknown")
    ]


def unproven_text(view: SagaView, step: StepView, *, by: str = "it", name: str | None = None) -> str:
    """A sentence without its full stop: what follows if the step has happened. ``by``: what counts as not happened."""
    key = idempotency_key(view.id, step.id, step.generation or 1)
    arguments = {} if step.arguments is None else dict(step.arguments)
    where = f" in {arguments['connection']}" if isinstance(arguments.get("connection"), str) else ""
    call = shorten_middle(f"{step.uses} {encode_json(arguments).decode()}", _MAX_CALL)
    return (
        f"whether {name or step.id} took effect is unknown, and {by} {COUNTS_AS_ABSENT}: if it has happened, its "
        f"effect stays{where}, key {key}, and nothing undoes it; by hand: undo what {call} has done"
    )


def unproven_lines(view: SagaView) -> Sequence[str]:
    """The sentences for people about a saga that has ended by the word of a person, without proof."""
    if view.state != "COMPENSATED":
        return []
    return [unproven_text(view, step, name=step.name or step.id) for step in unproven_steps(view)]


def _has_no_undo(step: StepView) -> bool:
    return step.effect is None and step.compensation is None and step.uses not in ("saga", "pass")
