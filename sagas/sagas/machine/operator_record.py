"""Records the decisions of operators about a saga, and their reasons.

A reason may quote `x-sensitive` values of the input. It becomes the reason of a rollback, which logs, failures
in Temporal and nested sagas repeat, so it is masked before it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagas.definition.sensitivity import SensitiveMask
from sagas.definition.times import format_timestamp
from sagas.machine.state import SagaRun, shown_arguments
from sagas.protocol.messages import DecisionMade
from sagas.protocol.saga_view import Intervention
from sagas.text.shortening import shorten_middle

MAX_PAUSES = 500
"""Pauses of one saga: the state, which a run hands on to the next one, has each of them."""

MAX_RECORD_CHARACTERS = 512 * 1024
"""Characters of all names, reasons, evidence and errors in the record, beyond which nothing is taken that can be
repeated without end."""

_MOST_OF_ERROR = 1_000
"""Characters that are kept of why a step was parked: it may be retried many times."""


def masked_words(run: SagaRun, words: str) -> str:
    """The words, which somebody has written about the saga, with `•••` in place of `x-sensitive` values."""
    return SensitiveMask(run.plan.sensitive_values(run.input)).text(words)


def note_decision(run: SagaRun, event: DecisionMade, closed: Sequence[str] = ()) -> dict[str, Any]:
    """Record an operator's decision for the view, and return it; ``closed`` are the outputs that it closes."""
    row = {name: getattr(event, name) for name in ("who", "step", "decision", "reason", "evidence")}
    row["reason"] = masked_words(run, event.reason)
    if event.definition is not None:
        row["definition"] = event.definition.get("digest")
    shown = {} if event.arguments is None else {"arguments": shown_arguments(event.arguments)}
    closes = {"closed": list(closed)} if closed else {}
    parked = run.parked.get(event.step)
    # Masked before it is cut: a part of a value would not be recognized any more.
    about = {} if parked is None else {"error": shorten_middle(masked_words(run, parked.why), _MOST_OF_ERROR)}
    run.operator.append({"at": format_timestamp(event.at), **row, **shown, **closes, **about})
    return row


def note_intervention(run: SagaRun, what: Intervention, at: float, who: str, reason: str) -> None:
    """Record an operator's decision about the whole saga for the view."""
    row = {"who": who, "step": "", "decision": what, "reason": masked_words(run, reason), "evidence": None}
    run.operator.append({"at": format_timestamp(at), **row})


def last_decision(run: SagaRun, entry: str) -> dict[str, Any]:
    """When, who, why and with what evidence an operator last decided about the entry."""
    row = next((row for row in reversed(run.operator) if row["step"] == entry), {})
    return {name: row.get(name) for name in ("at", "who", "reason", "evidence")}


def pause_refusal(run: SagaRun) -> str | None:
    """Why the saga takes no further pause; None if it takes one."""
    if sum(row["decision"] == "pause" for row in run.operator) >= MAX_PAUSES:
        return f"the saga has been paused {MAX_PAUSES:,} times, which is the most"
    return repetition_refusal(run)


def repetition_refusal(run: SagaRun) -> str | None:
    """Why nothing is recorded any more that can be repeated without end; None if something is."""
    words = sum(len(row.get(name) or "") for row in run.operator for name in ("who", "reason", "evidence", "error"))
    if words < MAX_RECORD_CHARACTERS:
        return None
    return (
        f"the names, reasons, evidence and errors of what operators have decided about this saga have {words:,} "
        f"characters, and neither a pause nor a retry is taken beyond {MAX_RECORD_CHARACTERS:,}"
    )
