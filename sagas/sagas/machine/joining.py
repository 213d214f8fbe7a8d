"""The outcome of a step joins all its attempts (guarantees §1).

A rejection says that nothing happened in *that* attempt. Whether nothing happened at all depends on the attempts
before it: a timed-out one may have left, or may still leave, its effect. Judging by the last attempt alone leaks.
"""

from __future__ import annotations

from sagas.definition.model import Operation, Retry
from sagas.outcomes import Outcome, OutcomeKind


def alone(outcome: Outcome, made_before: int, execution: str = "remote") -> bool:
    """True when this answer came from the very first attempt, so that no other can have had an effect.

    A local attempt is never alone: a workflow task that is repeated repeats it without counting.
    """
    return execution == "remote" and outcome.attempt is not None and made_before + outcome.attempt <= 1


def joined(operation: Operation, outcome: Outcome, made_before: int, execution: str = "remote") -> OutcomeKind:
    """What is known about the effect after this answer.

    A participant that honours the key remembers a refusal under it, so its rejection holds for every attempt. A
    *failed* unguarded attempt is the engine's own word about that attempt only (it was refused before the call), so
    it says nothing about an earlier one.
    """
    if outcome.parks is not None and outcome.kind != "done":
        return "unknown"
    if outcome.kind in ("done", "late", "unknown"):
        return outcome.kind
    if alone(outcome, made_before, execution):
        return outcome.kind
    if outcome.kind == "rejected" and not operation.guarded and operation.idempotent:
        return "rejected"
    return "unknown"


def hides_attempts(outcome: Outcome, attempts: int | None, retry: Retry) -> bool:
    """True when the last attempt found no worker, and nobody told whether it was the only one.

    A worker that knew the action may have died in an earlier attempt, and one that does not know it taken its place.
    """
    return outcome.not_started and attempts is None and retry.max_attempts > 1


def counted(
    made: int, attempts: int | None, total: int | None, outcome: Outcome, retry: Retry
) -> tuple[int, int | None]:
    """The new lower bound and the new exact count of attempts (None: unknown) after a call that made ``attempts``.

    Attempts that found no worker do not count. When nobody told the number, a call that ended without an answer has
    used up what it was given.
    """
    if outcome.not_started:
        attempts = attempts or 0
    if attempts is None:
        used_up = outcome.kind == "unknown" and outcome.retryable
        return made + (retry.max_attempts if used_up else 1), None
    return made + attempts, None if total is None else total + attempts
