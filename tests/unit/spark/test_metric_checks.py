"""Checks evaluated from write metrics: violations and messages."""

from __future__ import annotations

from typing import Any

import pytest

from saga_spark.audit import audit_task
from saga_spark.audit.checks import CheckResult, evaluate_metrics, overall_verdict
from saga_spark.job.job_spec import Check, comparison_input_name
from saga_spark.manifest import Manifest
from sagas.errors import UsageError


def manifest(rows: int = 10, **counts: Any) -> Manifest:
    return Manifest("k", 1, 1, "output", (), rows, {"type": "struct", "fields": []}, "0" * 32, counts=counts)


def check(kind: str, spec: Any, **more: Any) -> Check:
    return Check.parse(1, {"name": "c", kind: spec, **more}, ["output"])


@pytest.mark.parametrize(
    ("data_check", "staged", "previous", "broken", "message"),
    [
        (check("rows", {"equals": 10}), manifest(), None, False, "10 rows"),
        (check("rows", {"equals": "10"}), manifest(), None, False, "10 rows"),  # results of steps are texts
        (check("rows", {"equals": 11}), manifest(), None, True, "expected 11 rows, found 10"),
        (check("rows", {"min": 11, "max": 5}), manifest(), None, True, "at least 11 rows, found 10; at most 5 rows"),
        (check("rows", {"min": 1}, where="a > 1"), manifest(c=0), None, True, "at least 1 row, found 0"),
        (check("rows", {"change": "20%"}), manifest(), None, False, "10 rows"),  # nothing to compare with yet
        (check("rows", {"change": "20%"}), manifest(), 12, False, "10 rows"),
        (
            check("rows", {"change": "20%"}),
            manifest(),
            20,
            True,
            "10 rows after 20 in the last publication with rows, a change of 50.0% (allowed 20%); "
            "if 10 is right, start the saga again with `accept: 10` in this check",
        ),
        (check("rows", {"change": "20%"}), manifest(), 0, False, "10 rows"),
        (check("rows", {"change": "20%"}), manifest(rows=0), 10, True, "a change of 100.0%"),
        (check("rows", {"change": "20%", "accept": None}), manifest(), 20, True, "10 rows after 20"),
        (check("rows", {"change": "20%", "accept": "11"}), manifest(), 20, False, "10 rows, 11 were accepted"),
        (check("rows", {"change": "20%", "accept": 0}), manifest(rows=0), 20, False, "0 rows, 0 were accepted"),
        (
            check("rows", {"change": "20%", "accept": 100}),
            manifest(),
            10,
            True,
            "10 rows after 100 that `accept` names",
        ),
        (check("rows", {"change": "20%", "accept": 10, "min": 11}), manifest(), 20, True, "at least 11 rows"),
        (check("rows", {"change": "20%"}), manifest(rows=0), 0, False, "0 rows"),
        (check("sum", {"column": "v", "equals": "1.25"}), manifest(c="1.25"), None, False, "the sum of v is 1.25"),
        (
            check("sum", {"column": "v", "equals": "1.25"}),
            manifest(c="1.26"),
            None,
            True,
            "expected 1.25 as the sum of",
        ),
        (
            check("sum", {"column": "v", "equals": "1.25", "tolerance": 0.01}),
            manifest(c="1.26"),
            None,
            False,
            "the sum of v is 1.26",
        ),
        (check("sum", {"column": "v", "min": 0}), manifest(rows=0, c=None), None, False, "the sum of v is 0"),
        (check("sum", {"column": "v", "min": 0}), manifest(c="NaN"), None, True, "the sum of v is not a number"),
        (check("sum", {"column": "v", "max": 0}), manifest(c="-Infinity"), None, True, "the sum of v is not a number"),
        (check("not_null", ["a", "b"]), manifest(**{"c/a": 0, "c/b": 0}), None, False, "no null in a, b"),
        (check("not_null", ["a", "b"]), manifest(**{"c/a": 0, "c/b": 3}), None, True, "3 nulls: 3 in b"),
        (check("accepted_values", {"column": "a", "values": [1]}), manifest(c=2), None, True, "2 rows have a value"),
        (check("expression", "a >= 0"), manifest(c=0), None, False, "a >= 0 holds"),
        (check("expression", "a >= 0"), manifest(c=1), None, True, "1 row violates a >= 0"),
    ],
)
def test_a_metric_is_checked_against_its_limits(
    data_check: Check, staged: Manifest, previous: int | None, broken: bool, message: str
) -> None:
    metrics = evaluate_metrics(data_check, staged, previous)
    assert (metrics.violated, message in metrics.message) == (broken, True), metrics.message


def test_a_non_numeric_limit_gives_a_one_line_error() -> None:
    with pytest.raises(UsageError, match="the check c: `equals` must be a number, not None"):
        evaluate_metrics(check("rows", {"equals": None}), manifest(), None)


def test_only_complete_outputs_are_compared_with_the_previous_run() -> None:
    with pytest.raises(UsageError, match="the check c has `change` and `where`"):
        check("rows", {"change": "20%"}, where="channel = 'web'")


def test_an_accepted_level_belongs_to_a_change() -> None:
    with pytest.raises(UsageError, match="the check c has `accept` without `change`"):
        check("rows", {"min": 1, "accept": 5})


def test_two_checks_have_separate_reference_inputs() -> None:
    sides = [
        comparison_input_name(check("relationships", {}, name=name)) for name in ("known product", "known-product")
    ]
    assert sides[0] != sides[1]


def test_a_warning_does_not_refuse() -> None:
    hard, soft = check("rows", {"min": 99}), check("rows", {"min": 99}, severity="warn")
    assert overall_verdict([evaluate_metrics(soft, manifest(), None)]) == "warn"
    assert (
        overall_verdict([evaluate_metrics(soft, manifest(), None), evaluate_metrics(hard, manifest(), None)]) == "fail"
    )
    assert overall_verdict([]) == "pass"


def test_the_report_shows_violations_escaped() -> None:
    rows = [{"id": 1, "name": "<b>x</b>", "amount": None}]
    results = [CheckResult(check("expression", "a | b"), True, "1 row violates a | b", {}, rows)]
    document = {
        "verdict": overall_verdict(results),
        "saga": {"id": "day-1", "step": "facts"},
        "checks": [result.to_json() for result in results],
        "outputs": {"output": {"rows": 1, "bytes": 2, "hash": "0", "files": 1}},
    }
    page, text = audit_task.report_html(document), audit_task.report_markdown(document)
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<b>x</b>" not in page
    assert "null" in page
    assert "a \\| b" in text
    assert '"name": "<b>x</b>"' in text
