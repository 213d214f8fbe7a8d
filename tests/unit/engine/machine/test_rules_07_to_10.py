"""Rules 7 to 10: the definition travels along, ids and keys, sizes, and bugs that never wedge."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sagas.definition.model import Retry
from sagas.machine.machine import Machine
from sagas.machine.view import shrink_view
from sagas.protocol.messages import Call, StartTimer
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine.driver import START, MachineDriver, op, probe, saga, step, undo

# --- rule 7 ----------------------------------------------------------------------------------------------------------


def test_rule_07_the_definition_travels_in_the_snapshot() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), hold=["a"]).start()
    snapshot = decode_json(encode_json(driver.machine.snapshot()))
    assert Machine.restore(snapshot).definition == driver.machine.definition


def test_calls_in_flight_are_reissued_after_a_restore_with_their_remaining_time() -> None:
    definition = saga(step("a"), step("b", on=None, needs=()), line=False, deadline=100.0)
    driver = MachineDriver(definition, hold=["a", "b"]).start()
    machine = Machine.restore(decode_json(encode_json(driver.machine.snapshot())))
    again = machine.reissue(START + 40)
    assert [command for command in again if isinstance(command, Call)] == driver.calls
    assert [(c.id, c.seconds) for c in again if isinstance(c, StartTimer)] == [("deadline", 60.0)]


def test_a_snapshot_of_another_version_is_refused() -> None:
    snapshot = MachineDriver(saga(step("a"))).machine.snapshot()
    with pytest.raises(ValueError, match="version"):
        Machine.restore({**snapshot, "version": 99})


@pytest.mark.parametrize("outcome", ["done", "rejected", "unknown", "infrastructure"])
def test_a_restore_before_every_event_changes_nothing(outcome: str) -> None:
    definition = saga(
        step("a", for_each="${{ [1, 2, 3] }}", max_parallel=2),
        step("b", on=None, idempotent=False, probe=probe(seals=True)),
        step("c", confirm=op("ok", on="bank")),
        step("p", kind="pivot"),
        step("n", kind="retriable"),
        deadline=5000.0,
        output={"a": "${{ steps.a.results }}"},
    )
    answers = {
        "b": ["unknown", "done"],
        "b~probe": ["unsure", "absent"],
        "p": outcome,
        "c~confirm": ["unknown", "done"],
    }
    plain = MachineDriver(definition, answers=answers).run()
    restored = MachineDriver(definition, answers=answers, restore=True).run()
    assert restored.log == plain.log
    assert restored.story == plain.story
    assert restored.records == plain.records


def test_the_same_events_give_the_same_commands() -> None:
    definition = saga(step("a"), step("l", needs=("a",)), step("r", needs=("a",)), line=False)
    assert MachineDriver(definition).run().calls == MachineDriver(definition).run().calls


# --- rule 8 ----------------------------------------------------------------------------------------------------------


def test_rule_08_keys_identify_the_operation() -> None:
    definition = saga(
        step("a", on=None, probe=probe(), compensate=undo("u1", "u2", on=None)),
        step("b"),
    )
    answers = {"a": "unknown", "a~probe": "unsure", "a~undo": "rejected"}
    driver = MachineDriver(definition, answers=answers).run()
    assert [(call.id, call.key) for call in driver.calls] == [
        ("a", "s1/a"),
        ("a~probe", "s1/a"),
        ("a~undo", "s1/a/undo"),
        ("a~undo.1", "s1/a/undo.1"),
    ]


def test_rule_08_every_entry_of_another_run_starts_at_its_generation() -> None:
    driver = MachineDriver(saga(step("a"), step("b", confirm=op("ok", on="shop"))), generation=3).run()
    assert [(call.key, call.generation) for call in driver.calls] == [
        ("s1/a@3", 3),
        ("s1/b@3", 3),
        ("s1/b@3/confirm", 3),
    ]
    assert driver.row("a")["generation"] == 3


def test_summaries_describe_the_operations() -> None:
    definition = saga(
        step("a", name="Take it", confirm=op("ok", on="shop")), step("b", name="Pay"), step("p", kind="pivot")
    )
    driver = MachineDriver(definition, answers={"b": "unknown", "b~seal": "done"}).run()
    assert [call.summary for call in driver.calls] == [
        "Take it",
        "Pay",
        "? did Pay happen",
        "↩ undo Pay",
        "↩ undo Take it",
    ]
    assert MachineDriver(definition).run().calls[-1].summary == "✔ confirm Take it"


# --- rule 9 ----------------------------------------------------------------------------------------------------------


def test_rule_09_a_view_within_the_limit_is_unchanged() -> None:
    view = MachineDriver(saga(step("a"))).run().view
    assert shrink_view(view, 100_000) is view


@pytest.mark.parametrize("limit", [400_000, 60_000, 8_000])
def test_rule_09_inputs_and_results_go_first_then_finished_items(limit: int) -> None:
    definition = saga(step("a", for_each="${{ input.n }}", max_parallel=50), step("b", on_failure="park"))
    answers: dict[str, Any] = {"b": "rejected"}
    driver = MachineDriver(definition, {"n": list(range(500)), "big": "x" * 500_000}, answers).run()
    small = shrink_view(driver.view, limit).to_json()
    assert len(json.dumps(small)) <= limit
    assert small["input"]["omitted"] == "size"
    assert [row["state"] for row in small["steps"] if row["id"] == "b"] == ["PARKED"]
    assert len(small["parked"]) == 1
    if limit < 100_000:
        assert small["steps_omitted"] == {"a DONE": 500}


def test_rule_09_small_values_stay_beside_a_large_one() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), {"big": "x" * 50_000}).run()
    view = replace(driver.view, output={"sum": "y" * 277})
    small = shrink_view(view, 11_000).to_json()
    assert small["input"]["omitted"] == "size"
    assert small["output"] == {"sum": "y" * 277}


def test_rule_09_a_result_too_large_before_the_commit_is_failed_and_not_retried() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), answers={"b": "definition"}).run()
    assert driver.log == ["a", "b", "a~undo"]


# --- rule 10 ---------------------------------------------------------------------------------------------------------

BAD = {"x": "${{ input.none }}"}


@pytest.mark.parametrize(
    "broken",
    [
        step("b", with_=BAD),
        step("b", if_="${{ input.none }}"),
        step("b", if_="${{ 1 }}"),
        step("b", for_each="${{ input.none }}"),
        step("b", for_each="${{ 7 }}"),
        step("b", kind="read", uses="require", with_={"that": "${{ 1 }}"}),
        step("b", kind="read", uses="wait", with_={"for": "a while"}),
    ],
)
def test_rule_10_a_failing_expression_before_the_commit_point_follows_on_failure(broken: Any) -> None:
    driver = MachineDriver(saga(step("a"), broken)).run()
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["kind"] == "definition"
    assert driver.story["reason"]["step"] == "b"
    assert driver.row("b")["state"] == "FAILED"
    assert driver.log == ["a", "a~undo"]


@pytest.mark.parametrize(
    ("definition", "answers", "op_"),
    [
        (saga(step("p", kind="pivot"), step("n", kind="retriable", with_=BAD)), {}, "do"),
        (saga(step("a", compensate=undo(op("un.a", BAD, on="shop"))), step("b")), {"b": "rejected"}, "undo"),
        (saga(step("a", confirm=op("ok", BAD, on="shop"))), {}, "confirm"),
        (saga(step("a", on=None, probe=probe(done="response.none"))), {"a": "unknown", "a~probe": "done"}, "do"),
    ],
)
def test_rule_10_past_it_and_in_compensate_confirm_and_probe_the_saga_parks(
    definition: Any, answers: dict[str, Any], op_: str
) -> None:
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.state == "PARKED"
    assert driver.story["parked"][0]["op"] == op_


def test_rule_10_an_operator_retries_with_corrected_arguments() -> None:
    definition = saga(step("a", compensate=undo(op("un.a", BAD, on="shop"))), step("b"))
    driver = MachineDriver(definition, answers={"b": "rejected"}).run()
    driver.decide("a", "retry", arguments={"x": 1})
    assert driver.call("a~undo").arguments == {"x": 1}
    assert driver.state == "COMPENSATED"


def test_rule_10_an_operator_retries_with_a_corrected_definition() -> None:
    broken = saga(step("p", kind="pivot"), step("n", kind="retriable", with_=BAD))
    repaired = saga(step("p", kind="pivot"), step("n", kind="retriable", with_={"x": 1}))
    driver = MachineDriver(broken).run()
    snapshot = MachineDriver(repaired).machine.snapshot()["definition"]
    driver.decide("n", "retry", definition=snapshot)
    assert driver.call("n").arguments == {"x": 1}
    assert driver.state == "COMPLETED"


def test_rule_10_a_corrected_definition_with_other_steps_is_refused() -> None:
    driver = MachineDriver(saga(step("p", kind="pivot"), step("n", kind="retriable", with_=BAD))).run()
    other = MachineDriver(saga(step("p", kind="pivot"), step("m", kind="retriable"))).machine.snapshot()["definition"]
    assert "other steps" in (driver.refusal("n", "retry", definition=other) or "")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "read", "compensate": None}, "the kind of a"),
        ({"on": "bank"}, "the location of the effect of a"),
        ({"on": None}, "the location of the effect of a"),
        ({"for_each": "${{ [1] }}"}, "`for_each` of a"),
        ({"confirm": None}, "`confirm` of a"),
        ({"compensate": undo("un.a")}, "`compensate` of a"),
        ({"compensate": undo("un.a", "un.b", on="bank")}, "`compensate` of a"),
    ],
)
def test_rule_10_a_corrected_definition_keeps_where_effects_are_made_and_undone(
    changed: dict[str, Any], message: str
) -> None:
    plain = {"compensate": undo("un.a", "un.b"), "confirm": op("ok", {}, on="shop"), "on_failure": "park"}
    driver = MachineDriver(saga(step("a", **plain, with_=BAD))).run()
    other = MachineDriver(saga(step("a", **{**plain, **changed}))).machine.snapshot()["definition"]
    assert message in (driver.refusal("a", "retry", definition=other) or "")
    more = {**plain, "compensate": undo("un.a", "un.b", "un.c"), "retry": Retry(max_attempts=9)}
    fine = MachineDriver(saga(step("a", **more))).machine.snapshot()["definition"]
    assert driver.refusal("a", "retry", definition=fine) is None


@pytest.mark.parametrize(
    "invalid", [{}, {"saga": "test"}, {"saga": "test", "steps": [7]}, {"saga": "test", "steps": 7}]
)
def test_rule_10_an_invalid_corrected_definition_is_refused(invalid: dict[str, Any]) -> None:
    driver = MachineDriver(saga(step("a", with_=BAD, on_failure="park"))).run()
    assert "that a run carries" in (driver.refusal("a", "retry", definition=invalid) or "")


def test_rule_10_output_fails_as_a_pseudo_step() -> None:
    driver = MachineDriver(saga(step("a"), output="${{ input.none }}")).run()
    assert driver.state == "PARKED"
    parked = driver.story["parked"][0]
    assert (parked["step"], parked["decisions"]) == ("output", ["retry", "done"])
    assert "skip" in (driver.refusal("output", "skip") or "")
    driver.decide("output", "done", result={"x": 1})
    assert driver.state == "COMPLETED"
    assert driver.finishes[0].output == {"x": 1}


def test_rule_10_a_for_each_bug_can_be_corrected_past_the_commit_point() -> None:
    broken = saga(step("p", kind="pivot"), step("n", kind="retriable", for_each="${{ input.none }}"))
    repaired = saga(step("p", kind="pivot"), step("n", kind="retriable", for_each="${{ [1, 2] }}"))
    driver = MachineDriver(broken).run()
    assert driver.states()["n"] == "PARKED"
    driver.decide("n", "retry", definition=MachineDriver(repaired).machine.snapshot()["definition"])
    assert driver.log == ["p", "n#0", "n#1"]
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize("place", ["b", "a~undo", "c~confirm"])
def test_rule_10_an_unregistered_action_is_retried_uncounted(place: str) -> None:
    definition = saga(step("a"), step("b"), step("c", confirm=op("ok", on="shop")))
    answers: dict[str, Any] = {place: ["not_started"] * 20 + ["done"]}
    if place == "a~undo":
        answers["b"] = "rejected"
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.log.count(place) == 21
    assert driver.call(place).earlier_attempts == 0
    assert driver.now == START + 20 * 60
    assert driver.state == ("COMPENSATED" if place == "a~undo" else "COMPLETED")
