"""The table of `saga simulate`: the result of each fault, and that a real residue is detected."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Definition, Locks
from sagas.errors import SagaError, UsageError
from sagas.simulation import FAULTS, Environment, FailurePoint, Script, failure_points, simulate
from tests.unit.engine.machine.driver import op, probe, saga, step, undo


def table(
    definition: Definition, input: Any = None, script: Script | None = None
) -> dict[tuple[str, str], FailurePoint]:
    return {(cell.step, cell.fault): cell for cell in failure_points(definition, input, script)}


LINE = saga(step("a"), step("b"), step("p", kind="pivot"), step("after", kind="retriable"), deadline=60.0)


def test_a_guarded_sequence_leaves_no_residue() -> None:
    cells = table(LINE)
    assert not any(cell.residue for cell in cells.values())
    assert {fault: cells["a", fault].state for fault in FAULTS} == {
        "rejected": "COMPENSATED",
        "failed": "COMPENSATED",
        "unknown": "COMPENSATED",
        "crash after effect": "COMPLETED",
        "compensation fails": "PARKED",
        "late": "COMPENSATED",
        "cancel": "COMPENSATED",
        "deadline": "COMPENSATED",
    }


def test_what_is_undone_is_in_reverse_order() -> None:
    cells = table(LINE)
    assert cells["p", "rejected"].undone == ["b", "a"]
    assert cells["b", "cancel"].undone == ["b", "a"]
    assert cells["b", "unknown"].undone == ["a"]
    assert cells["a", "compensation fails"].undone == ["b"]
    assert cells["b", "compensation fails"].undone == []


def test_past_the_pivot_the_saga_only_goes_forward() -> None:
    cells = table(LINE)
    for fault in ("failed", "unknown", "crash after effect", "late", "cancel", "deadline"):
        assert cells["after", fault].state == "COMPLETED", fault
    assert cells["after", "rejected"].state == "PARKED"
    assert cells["p", "cancel"].state == "COMPLETED"
    assert ("p", "compensation fails") not in cells


def test_a_late_attempt_without_deduplication_is_a_residue() -> None:
    lossy_broker = saga(step("a", on=None, idempotent=False), step("p", kind="pivot"))
    cell = table(lossy_broker)["a", "late"]
    assert cell.state == "COMPENSATED"
    assert [(row["step"], row["kind"]) for row in cell.residue] == [("a", "effect_stays")]
    honouring = saga(step("a", on=None), step("p", kind="pivot"))
    assert table(honouring)["a", "late"].residue == []


def test_no_deadline_means_no_deadline_fault() -> None:
    assert not [fault for _, fault in table(saga(step("a"), step("p", kind="pivot"))) if fault == "deadline"]


def test_alternates_are_used_when_the_first_compensation_is_refused() -> None:
    definition = saga(step("a", compensate=undo("first", "second")), step("p", kind="pivot"))
    cell = table(definition)["a", "compensation fails"]
    assert (cell.state, cell.undone) == ("COMPENSATED", ["a"])


def test_each_item_of_a_for_each_is_a_failure_point() -> None:
    definition = saga(step("a", for_each="${{ input.items }}"), step("p", kind="pivot"))
    cells = table(definition, {"items": [1, 2, 3]})
    assert cells["a#1", "rejected"].undone == ["a#0"]
    assert cells["p", "rejected"].undone == ["a#2", "a#1", "a#0"]


def test_a_long_for_each_fails_at_its_first_and_last_items() -> None:
    definition = saga(step("a", for_each="${{ input.items }}", max_parallel=50), step("p", kind="pivot"))
    steps = list(dict.fromkeys(step for step, _ in table(definition, {"items": list(range(50))})))
    assert steps[:2] == ["a#0", "a#1"]
    assert steps[-2:] == ["a#49", "p"]
    assert len(steps) == 11


def test_an_unresponsive_unguarded_pivot_parks() -> None:
    definition = saga(step("a"), step("p", kind="pivot", on=None, idempotent=False))
    cell = table(definition)["p", "crash after effect"]
    assert cell.state == "PARKED"
    assert {"done", "compensate"} <= set(cell.parked[0]["decisions"])


def test_a_probe_finds_the_effect_of_a_lost_response() -> None:
    asked = step("a", on=None, idempotent=False, probe=probe(done="response.found"))
    cells = table(saga(asked, step("p", kind="pivot")))
    assert cells["a", "crash after effect"].state == "COMPLETED"
    assert cells["a", "unknown"].residue == []


def test_a_late_attempt_is_found_by_a_probe_that_waits_for_settle() -> None:
    pivot = step("p", kind="pivot", on=None, probe=probe(), settle=60.0)
    cell = table(saga(step("a"), pivot))["p", "late"]
    assert (cell.state, cell.residue) == ("COMPLETED", [])
    asked = step("a", on=None, idempotent=False, probe=probe(), settle=60.0)
    assert table(saga(asked, step("p", kind="pivot")))["a", "late"].residue == []


def test_a_confirm_is_part_of_the_run() -> None:
    definition = saga(step("a", confirm=op("fix", on="shop")), step("b"))
    run = simulate(definition, {})
    assert [row["state"] for row in run.steps] == ["CONFIRMED", "DONE"]
    assert simulate(definition, {}, Script({"a/confirm": "rejected"})).state == "PARKED"


def test_a_saga_that_does_not_even_complete_has_no_table() -> None:
    broken = saga(step("a", with_={"x": "${{ input.missing }}"}))
    with pytest.raises(SagaError, match="without a failure test ends COMPENSATED"):
        failure_points(broken, {})
    with pytest.raises(SagaError, match="COMPENSATED with the sample input that was generated from its schema: a: "):
        failure_points(broken, {}, Script(input_is_sample=True))


# --- waits, conditions, nested sagas ---------------------------------------------------------------------------------


def test_a_wait_is_signalled_rejected_or_timed_out() -> None:
    wait = step("ask", kind="read", on=None, do=op("wait", {"signal": "approve", "timeout": "2h"}), compensate=None)
    definition = saga(step("a"), wait, step("p", kind="pivot"), output="${{ steps.ask.result.data.by }}")
    run = simulate(definition, {}, Script(signals={"approve": {"by": "kim"}}))
    assert (run.state, run.output) == ("COMPLETED", "kim")
    cells = table(definition, script=Script(signals={"approve": {"by": "kim"}}))
    assert {fault for step, fault in cells if step == "ask"} == {"rejected", "unknown", "cancel"}
    assert cells["ask", "unknown"].undone == ["a"]
    assert cells["ask", "unknown"].reason == {
        "kind": "rejected",
        "step": "ask",
        "type": "Timeout",
        "message": "no approve arrived within 2h",
        "details": {},
    }


def test_a_requirement_that_is_not_met() -> None:
    require = step("ok", kind="read", on=None, do=op("require", {"that": "${{ input.n > 0 }}"}), compensate=None)
    cells = table(saga(step("a"), require, step("p", kind="pivot")), {"n": 1})
    assert cells["ok", "rejected"].undone == ["a"]


CHILD = saga(step("inner"))


def nested(*after: Any) -> Definition:
    call = step("sub", on=None, do=op("saga", {"name": "child", "input": {}}), compensate=None)
    return saga(step("a"), call, *after)


def test_a_nested_saga_runs_and_is_undone_with_its_parent() -> None:
    outside = Environment({"child": CHILD})
    definition = nested(step("z"))
    assert simulate(definition, {}, environment=outside).state == "COMPLETED"
    run = simulate(definition, {}, Script({"z": "rejected"}), outside)
    assert (run.state, run.undone, run.residue) == ("COMPENSATED", ["sub/inner", "sub", "a"], [])


def test_a_step_of_a_nested_saga_can_fail() -> None:
    run = simulate(nested(), {}, Script({"sub/inner": "rejected"}), Environment({"child": CHILD}))
    assert (run.state, run.undone) == ("COMPENSATED", ["a"])
    assert run.reason is not None
    assert run.reason["step"] == "sub"


def test_a_parked_nested_saga_parks_its_parent() -> None:
    outside = Environment({"child": saga(step("inner"), step("last", on_failure="park"))})
    run = simulate(nested(), {}, Script({"sub/last": "rejected"}), outside)
    assert run.state == "PARKED"
    assert [row["step"] for row in run.parked] == ["sub/last"]


@pytest.mark.parametrize(
    "script", [Script({"a#2": "rejected"}), Script(cancel_at="a#2"), Script({"a#7/undo": "failed"})]
)
def test_an_item_that_does_not_exist_is_an_error(script: Script) -> None:
    """A test with such an item would test nothing."""
    items = saga(step("a", for_each="${{ [1, 2] }}"))
    with pytest.raises(UsageError, match=r"there is no a#[27]: a had 2 items with this input, numbered from 0"):
        simulate(items, {}, script)
    assert simulate(items, {}, Script({"a#1": "rejected"})).state == "COMPENSATED"


# --- the script ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script({"bb": "rejected"}), "test has no step bb"),
        (Script({"a": "refused"}), "'refused' is not an outcome"),
        (Script(cancel_at="x"), "test has no step x"),
        (Script(results={"bb": 1}), "test has no step bb"),
        (Script({"a#0": "rejected"}), "a of test has no `for_each`, so there is no a#0"),
        (Script(signals={"paid": {}}), "no `wait` of test receives the signal paid"),
    ],
)
def test_a_mistake_in_the_script(script: Script, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulate(LINE, {}, script)


def test_outcomes_one_after_the_other() -> None:
    once = saga(step("a", on=None, idempotent=False, probe=probe()), step("p", kind="pivot"))
    run = simulate(once, {}, Script({"a": ["failed", "done"]}))
    assert run.state == "COMPLETED"
    assert run.steps[0]["attempts"] == 2


def test_the_same_run_again_is_the_same() -> None:
    script = Script({"b": "unknown"}, cancel_at="b")
    assert simulate(LINE, {}, script) == simulate(LINE, {}, script)


def test_locks_that_another_saga_holds_are_a_fault_of_their_own() -> None:
    cells = table(saga(step("a"), step("b"), locks=Locks(["k"], "shop")))
    cell = cells["a", "locked"]
    assert (cell.state, cell.undone, cell.residue) == ("COMPENSATED", [], [])
    assert cell.reason is not None
    assert cell.reason["kind"] == "locked"
    later = table(saga(step("a"), step("b"), locks=Locks(["k"], "shop", from_="b", wait=0.0)))["b", "locked"]
    assert (later.state, later.undone) == ("COMPENSATED", ["a"])
