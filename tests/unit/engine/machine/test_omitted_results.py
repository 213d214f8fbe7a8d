"""Rule 9: a result that was not kept is not a value: what reads it fails, and says which result, why and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.machine import state_budget
from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step, undo

LARGE = {"total": 125, "error": "x", "rows": [n * 7919 for n in range(300)]}
READS = [
    "steps.r.result",
    "steps.r.result.total",
    "size(steps.r.result)",
    "default(steps.r.result, 0)",
    "default(steps.r.result.total, 0)",
    "has(steps.r.result)",
    "has(steps.r.result.error)",
    "steps.r.result == null",
    "steps.r.result != null || true",
    "true || steps.r.result.total > 1 ? steps.r.result : 0",
    "steps.r.result.rows.map(n, n)",
    "steps.r.result.rows[0]",
    "'total' in steps.r.result",
    "[1, 2].exists(n, n < steps.r.result.total)",
    "steps.r",
    "steps",
    "{'a': [steps.r.result]}",
    "[steps.r.result] == [1]",
    "string(steps.r.result.total)",
]


@pytest.fixture(autouse=True)
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_budget, "STATE_BUDGET", 200)


@pytest.mark.parametrize("source", READS)
@pytest.mark.parametrize("restore", [False, True])
def test_before_the_commit_point_a_use_leads_backward(source: str, restore: bool) -> None:
    definition = saga(
        step("r", kind="read", on=None), step("a"), step("p", kind="pivot", with_={"n": f"${{{{ {source} }}}}"})
    )
    driver = MachineDriver(definition, answers={"r": Outcome.done(LARGE)}, restore=restore).run()
    reason = driver.story["reason"]
    assert (driver.state, driver.log, reason["kind"], reason["step"]) == (
        "COMPENSATED",
        ["r", "a", "a~undo"],
        "definition",
        "p",
    )
    size = driver.row("r")["result"]["bytes"]
    assert f"p.with.n: the result of r was not kept: it has {size:,} bytes" in reason["message"]
    assert driver.row("r")["result_kept"] is False
    assert "result_kept" not in driver.row("a")


@pytest.mark.parametrize(
    ("steps", "output", "parked"),
    [
        ([step("p", kind="pivot"), step("n", kind="retriable", with_={"n": "${{ steps.r.result }}"})], None, "n"),
        ([step("p", kind="pivot"), step("n", kind="retriable", if_="has(steps.r.result.error)")], None, "n"),
        ([step("p", kind="pivot"), step("n", kind="retriable", for_each="${{ steps.r.result.rows }}")], None, "n"),
        ([step("p", kind="pivot")], "${{ steps.r.result }}", "output"),
        ([step("a", confirm=op("ok", {"n": "${{ size(steps.r.result) }}"}, on="shop"))], None, "a"),
    ],
)
def test_after_the_commit_point_a_use_parks(steps: list[Any], output: str | None, parked: str) -> None:
    definition = saga(step("r", kind="read", on=None), *steps, output=output)
    driver = MachineDriver(definition, answers={"r": Outcome.done(LARGE)}).run()
    assert (driver.state, driver.story["parked"][0]["step"]) == ("PARKED", parked)
    assert "the result of r was not kept" in driver.story["parked"][0]["why"]


def test_an_undo_that_reads_the_result_of_its_step_parks() -> None:
    back = undo(op("un.a", {"total": "${{ default(steps.a.result.total, 0) }}"}, on="shop"))
    answers = {"a": Outcome.done(LARGE), "b": "rejected"}
    driver = MachineDriver(saga(step("a", compensate=back), step("b")), answers=answers).run()
    assert (driver.state, driver.log) == ("PARKED", ["a", "b"])
    assert "the result of a was not kept" in driver.story["parked"][0]["why"]


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("steps.r.results", True),
        ("steps.r.results[1].total", True),
        ("steps.r.results.map(r, default(r.total, 0))", True),
        ("steps.r.results.exists(r, r.total == 2)", True),
        ("steps.r.results.filter(r, r != null)", True),
        ("steps.r.results == [{'total': 1}, {'total': 2}]", True),
        ("{'total': 2} in steps.r.results", True),
        ("steps.r.results[0].total", False),
        ("steps.r.results.exists(r, r.total == 1)", False),
        ("size(steps.r.results)", False),
    ],
)
def test_the_results_of_items_are_refused_one_by_one(source: str, refused: bool) -> None:
    definition = saga(
        step("r", kind="read", on=None, for_each="${{ [1, 2] }}", max_parallel=1),
        step("p", kind="pivot", with_={"n": f"${{{{ {source} }}}}"}),
    )
    answers = {"r#0": Outcome.done({"total": 1}), "r#1": Outcome.done(LARGE)}
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.state == ("COMPENSATED" if refused else "COMPLETED")
    if refused:
        assert "the result of r#1 was not kept" in driver.story["reason"]["message"]


def test_a_response_to_a_probe_that_was_not_kept_is_no_absence() -> None:
    response = {"status": 200, "headers": {}, "json": None, "omitted": "size", "bytes": 3_000_000}
    asks = probe(done="has(response.json.id)", absent="response.json == null")
    definition = saga(step("a", on=None, probe=asks), step("b"))
    driver = MachineDriver(definition, answers={"a": "unknown", "a~probe": Outcome.done(response)}).run()
    assert driver.state == "PARKED"
    assert "the body of the response has 3,000,000 bytes" in driver.story["parked"][0]["why"]


def test_a_result_with_a_field_omitted_is_a_result() -> None:
    definition = saga(step("r", kind="read", on=None), step("p", kind="pivot", with_={"n": "${{ steps.r.result }}"}))
    for result in ({"omitted": "size"}, {"omitted": "price", "bytes": 5}, {"omitted": "size", "bytes": 1, "more": 2}):
        driver = MachineDriver(definition, answers={"r": Outcome.done(result)}).run()
        assert (driver.state, driver.call("p").arguments) == ("COMPLETED", {"n": result})
