"""How the errors of an action are told."""

from __future__ import annotations

import pytest

from saga_activities.guard.outcomes import outcome_of
from sagas.errors import AlreadyCompensated, Infrastructure, Rejected, UsageError

TABLE = [
    # error, kind, type of the failure, tried again
    (Rejected("out of stock"), "rejected", "Rejected", False),
    (AlreadyCompensated(), "late", "AlreadyCompensated", False),
    (UsageError("say holds=True"), "failed", "definition", False),  # the action's own mistake: again it is the same
    (Infrastructure("gone"), "failed", "Infrastructure", True),
    (ValueError("odd"), "failed", "ValueError", True),
]


@pytest.mark.parametrize(("error", "kind", "type", "again"), TABLE, ids=lambda value: type(value).__name__)
def test_an_error_of_an_action(error: BaseException, kind: str, type: str, again: bool) -> None:
    outcome = outcome_of(error)
    assert (outcome.kind, outcome.retryable) == (kind, again)
    assert outcome.failure is not None
    assert outcome.failure.type == type
