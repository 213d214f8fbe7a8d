"""List filters for sagas of bulk workflows: the ones that can be applied, and the sagas that match."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from saga_activities.ledger.records import Claim
from saga_workers.views.claim_filter import parse_claim_filter

CLAIM = Claim("t-2", "bulk~transfer-1", "transfer", "", datetime(2026, 5, 20, 10, tzinfo=UTC), {"from": "it's"})


@pytest.mark.parametrize(
    ("where", "matches"),
    [
        ("WorkflowType = 'transfer'", True),
        ("WorkflowType='transfer'and WorkflowType = 'other'", False),
        ("WorkflowType = \"transfer\" AND SagaLabels = 'from=it\\'s'", True),
        ("SagaLabels = 'from=it''s' AND WorkflowId = \"t-2\"", True),
        ("SagaLabels = 'from=a' AND SagaLabels = 'from=b'", False),
        ("SagaLabels = 'odd'", False),
        ("`WorkflowId` = 't-2' AND StartTime > '2026-05-20T09:59:59Z'", True),
        ("WorkflowId STARTS_WITH 't-3'", False),
        ("StartTime <= '2026-05-20' AND WorkflowType = 'transfer'", False),
        ("StartTime >= '2026-05-20T12:00:00+02:00' AND StartTime < '2026-05-20T12:00:01+02:00'", True),
        ("ExecutionStatus = 'Completed'", False),
        ("WorkflowId = 'AND WorkflowType != 1'", False),
    ],
)
def test_a_conjunction_of_comparisons_is_applied_to_claims(where: str, matches: bool) -> None:
    parsed = parse_claim_filter(where)
    assert parsed is not None
    rows = parsed.rows
    in_ledger = rows.saga in (None, CLAIM.saga) and all(
        CLAIM.labels.get(label) == rows.labels[label] for label in rows.labels
    )
    assert (in_ledger and all(condition(CLAIM) for condition in parsed.others)) is matches


@pytest.mark.parametrize(
    "where",
    [
        "",
        "WorkflowType != 'other'",
        "SagaLabels != 'from=a'",
        "WorkflowType IN ('transfer')",
        "WorkflowType = 'transfer' OR WorkflowId = 't-2'",
        "NOT WorkflowId = 't-2'",
        "(WorkflowType = 'transfer')",
        "SagaState = 'PARKED'",
        "SagaState IS NULL",
        "WorkflowType = 'transfer' AND",
        "WorkflowType = 'transfer' ANDWorkflowId = 't-2'",
        "StartTime > 'yesterday'",
        "WorkflowId = 't-2",
    ],
)
def test_other_filters_are_not_applied_to_claims(where: str) -> None:
    assert parse_claim_filter(where) is None
