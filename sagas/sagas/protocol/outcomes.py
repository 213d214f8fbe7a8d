"""The outcome of an attempt, of a call and of all attempts of a step: what is known about the effect.

====================  ==================================================================================
done                  the effect exists, exactly once
rejected              a definite business refusal; nothing happened
failed                an error, and it is certain that nothing happened
unknown               it is not known whether the effect exists: a timeout, a lost connection, a dead worker
late                  refused: the step has already been undone or sealed
====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sagas.definition.model import Operation, Retry
from sagas.errors import Rejected
from sagas.protocol.standing_pause import StandingPause
from sagas.text.author_errors import attribute_of
from sagas.text.author_values import reportable, text_of
from sagas.text.masked_texts import TextMask

OutcomeKind = Literal["done", "rejected", "failed", "unknown", "late"]

Marker = Literal[
    "nothing_to_undo", "confirmed", "elsewhere", "sealed", "absent", "unknown_effect", "skipped", "not_own"
]
"""Details that the guard or a probe adds to an outcome.

``nothing_to_undo``: the undo sealed the step, or found it sealed. ``confirmed``: the step was confirmed and this guard
has no action that undoes a confirmed effect; nothing was changed. ``elsewhere``: the undo or confirm was decided here,
its action runs on another connection. A seal that finds either of these two in the row of the undo has the result of
the step. ``sealed``: a seal won, the step never happened and never will. ``absent``: a probe found no effect.
``not_own``: the effect of another saga has the key, so this one has none. ``unknown_effect``: the step is known to be
done, but the guard has no row of it. ``skipped``: the rows of an automatic compensation stay as they are, because an
operator has skipped it.
"""


OTHER_ARGUMENTS = ("key used with other arguments", "the effect was made with other arguments")
"""Why a step, and the undo of a step, meet an effect that is not their own."""

ROW_LOCKED = "RowLocked"
"""The failure type of an attempt that ran into a row of another saga (`compensate: auto`)."""


PAUSED = "Paused"
"""The failure type of an attempt that was not made, because its connection or its saga is paused by an operator, or its
connection by a circuit breaker."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt was not done.

    ``type`` is the failure type on the wire (``Rejected``, ``Infrastructure``, an exception's class name), ``message``
    one sentence for users, ``details`` additional data from the action. Both may be any values of an author's code;
    they become a text and a JSON object. ``quotes``: these are not the business's own words, as its message or its
    details have the response of a participant, values that an expression has read, or rows of a database.
    """

    type: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    quotes: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", text_of(self.message))
        object.__setattr__(self, "details", reportable(self.details))

    def to_json(self) -> dict[str, Any]:
        data = {"type": self.type, "message": self.message, "details": dict(self.details)}
        return data | ({"quotes": True} if self.quotes else {})

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Failure:
        return Failure(data["type"], data["message"], data.get("details") or {}, data.get("quotes") is True)


def refused_value(message: str) -> Failure:
    """The failure of an attempt that a value, or another mistake in its arguments, keeps from running."""
    return Failure("definition", message, {"cannot_heal": True})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one call (of all attempts that the platform made for it).

    ``attempt`` is the number, within the call, of the attempt with this outcome (from 1); None when it is not
    reported, as by a worker in another language.
    ``nothing_before`` is True when every earlier attempt of the call has said itself that it had no effect.
    ``retryable`` is False when a retry cannot help (invalid arguments, a result too large).
    ``not_started`` is True when no worker had the action registered: such attempts are not counted.
    ``infrastructure`` is True for an error of a database or network, which does not concern the action itself.
    ``counted`` is False when the executor of the action was lost before it had an effect: the attempt is not counted.
    ``breaker`` is the open circuit breaker that explains why the attempt, which was made, has failed: it is repeated,
    and uses up none of the attempts that the step may make.
    ``park_reason`` is set when only an operator can decide (key reused with other arguments …).
    ``retry_after`` is the delay in seconds that the participant requested before the next attempt, if any.
    ``conflict`` is True when rows of other transactions are in the way, which a few retries may find gone.
    ``definite`` is True for a rejection that is about the request itself, and so about all attempts with its key.
    ``repeats`` counts the transactions of this attempt that were rolled back because of a conflict, and made again.
    ``answered`` says whether the database of the attempt has answered it, for the circuit breaker of its connection in
    the worker that has made it; None where nobody has looked. It is not sent.
    """

    kind: OutcomeKind
    result: Any = None
    failure: Failure | None = None
    attempt: int | None = None
    nothing_before: bool = False
    marker: Marker | None = None
    retryable: bool = True
    not_started: bool = False
    infrastructure: bool = False
    counted: bool = True
    breaker: StandingPause | None = None
    park_reason: str | None = None
    retry_after: float | None = None
    conflict: bool = False
    definite: bool = False
    repeats: int = 0
    answered: bool | None = None

    @property
    def charged(self) -> bool:
        """False for an attempt that uses up none of those that the step may make."""
        return self.breaker is None

    @staticmethod
    def done(result: Any = None, *, attempt: int | None = 1, marker: Marker | None = None) -> Outcome:
        return Outcome("done", result, attempt=attempt, marker=marker)


def is_held_back(outcome: Outcome) -> bool:
    """True for an attempt that was not made because of a pause: it is repeated until the pause has ended."""
    return not outcome.counted and outcome.failure is not None and outcome.failure.type == PAUSED


def rejection(error: Rejected) -> Outcome:
    """The outcome of an action that has raised ``error``."""
    # A subclass need not call the constructor of Rejected.
    message, details = attribute_of(error, "message", error), attribute_of(error, "details", {})
    return Outcome("rejected", failure=Failure("Rejected", text_of(message), details), retryable=False)


def mask_failure(outcome: Outcome, texts: Sequence[str]) -> Outcome:
    """The outcome without these texts in what it says; the details of a rejection are the participant's own data."""
    if not texts:
        return outcome
    mask = TextMask(texts)
    park_reason = outcome.park_reason and mask.text(outcome.park_reason)
    if (failure := outcome.failure) is not None:
        message = mask.text(failure.message)
        details = failure.details if outcome.kind == "rejected" else mask.value(dict(failure.details))
        failure = replace(failure, message=message, details=details)
    return replace(outcome, failure=failure, park_reason=park_reason)


# A rejection means that nothing happened in *that* attempt. An earlier attempt that timed out may have had its effect,
# or still have it, so judging by the last attempt alone would leave effects behind.
def is_only_attempt(outcome: Outcome, attempts_before: int, execution: str = "remote") -> bool:
    """True when this outcome is from the very first attempt, so that no other attempt can have had an effect.

    Never true for a local activity: a repeated workflow task repeats its attempts without counting them.
    """
    return execution == "remote" and outcome.attempt is not None and attempts_before + outcome.attempt <= 1


def merge_outcome(
    operation: Operation,
    outcome: Outcome,
    attempts_before: int,
    before: OutcomeKind | None = None,
    execution: str = "remote",
) -> OutcomeKind:
    """Return what is known about the effect after this outcome: the attempts of earlier calls had the outcome
    ``before``, if that is known.

    A rejection, like *failed*, is a statement about that attempt only, and implies nothing about an earlier one: a 409
    after a timeout may mean that the first request is still in progress. It holds for every attempt if the participant
    is declared to remember its rejections.
    """
    if outcome.park_reason is not None and outcome.kind != "done" and outcome.marker != "not_own":
        return "unknown"
    if outcome.kind in ("done", "late", "unknown"):
        return outcome.kind
    if is_only_attempt(outcome, attempts_before, execution):
        return outcome.kind
    clean = attempts_before == 0 or before in ("rejected", "failed")
    if clean and execution == "remote" and (outcome.nothing_before or outcome.attempt == 1):
        return outcome.kind
    if outcome.kind == "rejected" and not operation.guarded and operation.remembers_rejections:
        return "rejected"
    return "unknown"


def is_doubted(operation: Operation, outcome: Outcome, joined: OutcomeKind | None) -> bool:
    """True for a rejection that is not believed: outside of the guard, with attempts before it that may have had an
    effect. ``joined`` is the outcome of all attempts.
    """
    return outcome.kind == "rejected" and joined == "unknown" and not operation.guarded


def hides_earlier_attempts(outcome: Outcome, attempts: int | None) -> bool:
    """True when the last attempt found no worker for the action, and it is not known whether it was the only one.

    A worker that has the action may have died in an earlier attempt, and been replaced by one that does not have it.
    ``attempts``: those of the call that count; None if that is not known.
    """
    return outcome.not_started and attempts is None


def count_attempts(
    min_attempts: int, attempts: int | None, total: int | None, outcome: Outcome, retry: Retry
) -> tuple[int, int | None]:
    """Return the new lower bound and the new exact count of attempts (None: unknown) after a call of ``attempts``.

    Attempts that found no worker do not count. If the number is not reported, a call with outcome unknown is assumed
    to have used up its retries.
    """
    if outcome.not_started:
        attempts = attempts or 0
    if attempts is None:
        used_up = outcome.kind == "unknown" and outcome.retryable
        return min_attempts + (retry.max_attempts if used_up else 1), None
    return min_attempts + attempts, None if total is None else total + attempts
