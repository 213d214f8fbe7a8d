from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from saga_cli.commands.run.batch_run import parse_tolerated
from saga_cli.shared_options import parse_time
from saga_workers.views.parked import ParkedRow, group_parked
from saga_workers.views.saga_list import SagaFilter, visibility_query
from sagas.errors import UsageError
from sagas.protocol.outcomes import OTHER_ARGUMENTS

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_since_is_a_duration_or_a_timestamp() -> None:
    assert parse_time("2h", now=NOW) == datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
    assert parse_time("2026-02-01T00:00:00Z", now=NOW) == datetime(2026, 2, 1, tzinfo=UTC)


def test_a_name_cannot_inject_into_the_filter() -> None:
    assert "WorkflowType = 'a'' OR 1 = 1'" in visibility_query(SagaFilter(saga="a' OR 1 = 1"))


@pytest.mark.parametrize("name", ["a\\b", 'a"b', "a\nb", "\\' OR 1 = 1", "a\\"])
def test_a_value_without_a_literal_is_left_to_the_reader(name: str) -> None:
    query = visibility_query(SagaFilter(saga=name, labels={"day": name}))
    assert "SagaLabels IS NOT NULL" in query
    assert "WorkflowType STARTS_WITH 'a'" in query or "WorkflowType IS NOT NULL" in query
    assert "OR 1" not in query


@pytest.mark.parametrize(
    "where", [r"WorkflowId = 'a\d'", "SagaLabels = 'a\"b'", r"(a = 'x') OR WorkflowId IN ('a', 'a\\b')", 'a = "x""y"']
)
def test_a_filter_that_compares_a_value_without_a_literal_is_refused(where: str) -> None:
    with pytest.raises(UsageError, match="Temporal cannot compare"):
        visibility_query(SagaFilter(where=where))


@pytest.mark.parametrize("where", ["WorkflowId = 'it''s'", r"WorkflowId = 'it\'s'", 'WorkflowId = "it\'s"', "a = 1"])
def test_other_filters_are_not_refused(where: str) -> None:
    assert f"({where})" in visibility_query(SagaFilter(where=where))


@pytest.mark.parametrize(("text", "total", "count"), [(None, 5, None), ("1%", 250, 2), ("20", 5, 20), ("0", 5, 0)])
def test_tolerance(text: str | None, total: int, count: int | None) -> None:
    assert parse_tolerated(text, total) == count


@pytest.mark.parametrize("text", ["-1", "101%", "many", "nan", ""])
def test_an_invalid_tolerance_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_tolerated(text, 10)


def test_a_group_is_one_saga_step_operation_and_error() -> None:
    def waiting(saga_id: str, step: str, why: str) -> ParkedRow:
        return ParkedRow(
            "shop",
            saga_id,
            step,
            "undo",
            why,
            f"2026-03-01T00:00:0{saga_id[-1]}Z",
            ("retry", "skip"),
            (f"saga resolve {saga_id} {step} retry",),
        )

    groups = group_parked([waiting("s-2", "a#1", "no"), waiting("s-1", "a#7", "no"), waiting("s-3", "a", "it's down")])
    assert [(group["count"], group["error"], group["oldest"][-3:]) for group in groups] == [
        (2, "no", "01Z"),
        (1, "it's down", "03Z"),
    ]
    assert "--op undo --error no" in groups[0]["command"]
    checked = [replace(waiting(id, "a", "no"), decisions=("skip",), commands=(f"{id} skip",)) for id in ("s-1", "s-2")]
    assert group_parked([waiting("s-3", "a", "no"), *checked])[0]["command"] == "saga resolve s-3 a retry"
    assert group_parked([*checked, waiting("s-3", "a", "no")])[0]["command"] == "s-1 skip"
    assert groups[1]["command"].startswith("saga resolve s-3 a retry")
    for why in OTHER_ARGUMENTS:  # a retry would make the effect beside that of another run
        [group] = group_parked([waiting("s-1", "a", why), waiting("s-2", "a", why)])
        assert group["command"] == "saga show s-1"
