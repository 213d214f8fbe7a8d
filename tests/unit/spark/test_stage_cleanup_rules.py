"""Rules for the stage area: files that are deleted, and files that must never be."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from saga_spark.manifest import Target
from saga_spark.output_records import OutputRow, OutputState
from saga_spark.staging.stage_clean_up import SagaLiveness, decide_clean_up

DAY = 86_400.0


def row(state: OutputState, age: float = 0.0) -> OutputRow:
    return OutputRow(Target("s", "facts", 1), 1, state, "day", "lake.a.b", False, {}, updated_at=1_000 * DAY - age)


@pytest.mark.parametrize(("state", "liveness"), list(product(get_args(OutputState), ("open", "terminated"))))
def test_nothing_is_deleted_while_a_decision_is_pending(state: OutputState, liveness: SagaLiveness) -> None:
    assert decide_clean_up(row(state, 999 * DAY), liveness, 1_000 * DAY, DAY) == "keep"


@pytest.mark.parametrize("state", get_args(OutputState))
def test_a_saga_unknown_to_temporal_may_belong_to_another_namespace(state: OutputState) -> None:
    assert decide_clean_up(row(state, 0.5 * DAY), "unknown", 1_000 * DAY, DAY) == "keep"
    over = decide_clean_up(row(state, 2 * DAY), "over", 1_000 * DAY, DAY)
    assert decide_clean_up(row(state, 2 * DAY), "unknown", 1_000 * DAY, DAY) == over


@pytest.mark.parametrize(
    ("state", "age", "decision"),
    [
        ("PUBLISHED", 0.0, "clear"),
        ("REVERTED", 0.0, "clear"),
        ("DISCARDED", 0.0, "clear"),
        ("STAGING", 0.0, "clear_sink_too"),  # its attempt was sealed, or failed
        ("QUARANTINED", 0.5 * DAY, "keep"),  # kept for inspection
        ("QUARANTINED", 2 * DAY, "clear_sink_too"),
        ("STAGED", 999 * DAY, "keep"),  # undecided: reconciliation reports it
    ],
)
def test_files_of_a_finished_saga_are_cleared(state: OutputState, age: float, decision: str) -> None:
    assert decide_clean_up(row(state, age), "over", 1_000 * DAY, DAY) == decision
