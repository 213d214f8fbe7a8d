"""An outcome of an attempt tells whether the connection that it needs has answered."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from sagas.protocol.outcomes import Outcome
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_MOST_SHOWN = 80


def has_answered(outcome: Outcome, *, is_database: bool) -> bool | None:
    """Return whether the connection has answered the attempt; None if the outcome does not tell.

    An HTTP service fails with the attempt, unless that was wrong before it was sent. A database has also answered with
    each error about the rows, the locks or the statement of the attempt, and where the action itself fails.
    """
    if outcome.kind in ("done", "rejected", "late"):
        return True
    if is_database and outcome.answered is not None:
        return outcome.answered
    if not outcome.counted or not outcome.retryable or outcome.not_started:
        return None
    if not is_database or outcome.infrastructure:
        return False
    if outcome.failure is not None and outcome.failure.type == "Timeout":
        return False if outcome.kind == "unknown" else None
    return True if outcome.kind == "failed" else None


def last_failure(outcomes: Sequence[Outcome | None]) -> str:
    """The kind of the last failure, for the reason of a circuit breaker: a status of HTTP, or the type of the failure.

    Other sagas show it, so it has no word of the response or of a message.
    """
    failures = [outcome.failure for outcome in outcomes if outcome is not None and outcome.failure is not None]
    if not failures:
        return "no answer"
    status = failures[-1].details.get("status")
    if not isinstance(status, int) or isinstance(status, bool):
        return printable_line(shorten(failures[-1].type, _MOST_SHOWN))
    phrase = next((each.phrase for each in HTTPStatus if each == status), "")
    return f"{status} {phrase}".strip()
