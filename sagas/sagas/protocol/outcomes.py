"""The outcome of one attempt: what is known about an effect after somebody tried to make it.

====================  ==================================================================================
done                  the effect is there, exactly once
rejected              a definite business no; nothing happened
failed                trouble, and it is certain that nothing happened
unknown               nobody can say: a timeout, a lost connection, a dead worker
late                  refused: this step has already been undone or sealed
====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.definition.model import Operation, Retry

OutcomeKind = Literal["done", "rejected", "failed", "unknown", "late"]

Marker = Literal["nothing_to_undo", "confirmed", "elsewhere", "sealed", "absent", "unknown_effect"]
"""What the guard adds to a bare outcome.

``nothing_to_undo``: the undo sealed the step, or found it sealed. ``confirmed``: the step was confirmed and
there is no action that undoes a confirmed effect; nothing was changed. ``elsewhere``: the undo was decided
here, its action runs in another place. ``sealed``: a seal won, the step never happened and never will.
``absent``: a probe found no effect. ``unknown_effect``: the step is known to be done, but the guard has no
row of it.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt was not done, in words a person can use.

    ``type`` is the wire type of the failure (``Rejected``, ``Infrastructure``, an exception's class name),
    ``message`` one sentence, ``details`` whatever the action added to it.
    """

    type: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "message": self.message, "details": dict(self.details)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Failure:
        return Failure(data["type"], data["message"], data.get("details") or {})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call (all the attempts the platform made for it) ended.

    ``attempt`` is the number, within the call, of the attempt that gave the answer (from 1); None when
    nobody told, as with a worker in another language.
    ``retryable`` is False when trying again cannot help (bad arguments, a result too large).
    ``not_started`` is True when no worker knew the action: such attempts are not counted.
    ``counted`` is False when what runs the action was lost before it had an effect: such an attempt is not counted.
    ``parks`` names a reason why only a person can go on (key used with other arguments …).
    ``retry_after`` is the delay in seconds the participant asked for before the next attempt; None: it asked for none.
    """

    kind: OutcomeKind
    result: Any = None
    failure: Failure | None = None
    attempt: int | None = None
    marker: Marker | None = None
    retryable: bool = True
    not_started: bool = False
    infrastructure: bool = False
    counted: bool = True
    park_reason: str | None = None
    retry_after: float | None = None

    @staticmethod
    def done(result: Any = None, *, attempt: int | None = 1, marker: Marker | None = None) -> Outcome:
        return Outcome("done", result, attempt=attempt, marker=marker)


# The outcome of a step joins all its attempts (guarantees §1).
#
# A rejection says that nothing happened in *that* attempt. Whether nothing happened at all depends on the attempts
# before it: a timed-out one may have left, or may still leave, its effect. Judging by the last attempt alone leaks.


def is_only_attempt(outcome: Outcome, attempts_before: int, execution: str = "remote") -> bool:
    """True when this answer came from the very first attempt, so that no other can have had an effect.

    A local attempt is never alone: a workflow task that is repeated repeats it without counting.
    """
    return execution == "remote" and outcome.attempt is not None and attempts_before + outcome.attempt <= 1


def merge_outcome(
    operation: Operation, outcome: Outcome, attempts_before: int, execution: str = "remote"
) -> OutcomeKind:
    """What is known about the effect after this answer.

    A participant that honours the key remembers a refusal under it, so its rejection holds for every attempt. A
    *failed* unguarded attempt is the engine's own word about that attempt only (it was refused before the call), so
    it says nothing about an earlier one.
    """
    if outcome.park_reason is not None and outcome.kind != "done":
        return "unknown"
    if outcome.kind in ("done", "late", "unknown"):
        return outcome.kind
    if is_only_attempt(outcome, attempts_before, execution):
        return outcome.kind
    if outcome.kind == "rejected" and not operation.guarded and operation.idempotent:
        return "rejected"
    return "unknown"


def hides_earlier_attempts(outcome: Outcome, attempts: int | None, retry: Retry) -> bool:
    """True when the last attempt found no worker, and nobody told whether it was the only one.

    A worker that knew the action may have died in an earlier attempt, and one that does not know it taken its place.
    """
    return outcome.not_started and attempts is None and retry.max_attempts > 1


def count_attempts(
    min_attempts: int, attempts: int | None, total: int | None, outcome: Outcome, retry: Retry
) -> tuple[int, int | None]:
    """The new lower bound and the new exact count of attempts (None: unknown) after a call that made ``attempts``.

    Attempts that found no worker do not count. When nobody told the number, a call that ended without an answer has
    used up what it was given.
    """
    if outcome.not_started:
        attempts = attempts or 0
    if attempts is None:
        used_up = outcome.kind == "unknown" and outcome.retryable
        return min_attempts + (retry.max_attempts if used_up else 1), None
    return min_attempts + attempts, None if total is None else total + attempts
