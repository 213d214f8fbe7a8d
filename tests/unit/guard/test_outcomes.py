"""How errors of an action map to outcomes."""

from __future__ import annotations

import pytest

from saga_activities.guard.script_transactions import outcome_of_error
from sagas.errors import AlreadyCompensated, InfrastructureError, Rejected, UsageError

TABLE = [
    # error, kind, type of the failure, tried again
    (Rejected("out of stock"), "rejected", "Rejected", False),
    (AlreadyCompensated(), "late", "AlreadyCompensated", False),
    (UsageError("say holds=True"), "failed", "definition", False),  # the action's own mistake: again it is the same
    (InfrastructureError("gone"), "failed", "Infrastructure", True),
    (ValueError("odd"), "failed", "ValueError", True),
]


@pytest.mark.parametrize(("error", "kind", "type", "again"), TABLE, ids=lambda value: type(value).__name__)
def test_an_error_of_an_action(error: BaseException, kind: str, type: str, again: bool) -> None:
    outcome = outcome_of_error(error)
    assert (outcome.kind, outcome.retryable) == (kind, again)
    assert outcome.failure is not None
    assert outcome.failure.type == type
