"""Rules 7 to 10: the definition travels along, ids and keys, sizes, and bugs that never wedge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sagas.definition.model import Retry
from sagas.machine.machine import Machine
from sagas.machine.view import shrink_view
from sagas.protocol.messages import Call, StartTimer
from tests.unit.engine.machine.driver import START, World, op, probe, saga, step, undo

# --- rule 7 ----------------------------------------------------------------------------------------------------------


def test_rule_07_the_definition_travels_in_the_snapshot() -> None:
    world = World(saga(step("a"), step("b")), hold=["a"]).start()
    snapshot = json.loads(json.dumps(world.machine.snapshot()))
    assert Machine.restore(snapshot).definition == world.machine.definition


def test_what_is_in_flight_is_asked_again_after_a_restore_with_the_time_that_remains() -> None:
    definition = saga(step("a"), step("b", on=None, needs=()), line=False, deadline=100.0)
    world = World(definition, hold=["a", "b"]).start()
    machine = Machine.restore(json.loads(json.dumps(world.machine.snapshot())))
    again = machine.reissue(START + 40)
    assert [command for command in again if isinstance(command, Call)] == world.calls
    assert [(c.id, c.seconds) for c in again if isinstance(c, StartTimer)] == [("deadline", 60.0)]


def test_a_snapshot_of_another_version_is_refused() -> None:
    snapshot = World(saga(step("a"))).machine.snapshot()
    with pytest.raises(ValueError, match="version"):
        Machine.restore({**snapshot, "version": 99})


@pytest.mark.parametrize("word", ["done", "rejected", "unknown", "infrastructure"])
def test_a_restore_before_every_event_changes_nothing(word: str) -> None:
    definition = saga(
        step("a", for_each="${{ [1, 2, 3] }}", max_parallel=2),
        step("b", on=None, idempotent=False, probe=probe(seals=True)),
        step("c", confirm=op("ok", on="bank")),
        step("p", kind="pivot"),
        step("n", kind="retriable"),
        deadline=5000.0,
        output={"a": "${{ steps.a.results }}"},
    )
    answers = {"b": ["unknown", "done"], "b~probe": ["unsure", "absent"], "p": word, "c~confirm": ["unknown", "done"]}
    plain = World(definition, answers=answers).run()
    restored = World(definition, answers=answers, restore=True).run()
    assert restored.log == plain.log
    assert restored.story == plain.story
    assert restored.records == plain.records


def test_the_same_events_give_the_same_commands() -> None:
    definition = saga(step("a"), step("l", needs=("a",)), step("r", needs=("a",)), line=False)
    assert World(definition).run().calls == World(definition).run().calls


# --- rule 8 ----------------------------------------------------------------------------------------------------------


def test_rule_08_keys_name_the_intention() -> None:
    definition = saga(
        step("a", on=None, probe=probe(), compensate=undo("u1", "u2", on=None)),
        step("b"),
    )
    answers = {"a": "unknown", "a~probe": "unsure", "a~undo": "rejected"}
    world = World(definition, answers=answers).run()
    assert [(call.id, call.key) for call in world.calls] == [
        ("a", "s1/a"),
        ("a~probe", "s1/a"),
        ("a~undo", "s1/a/undo"),
        ("a~undo.1", "s1/a/undo.1"),
    ]


def test_rule_08_every_entry_of_another_run_starts_at_its_generation() -> None:
    world = World(saga(step("a"), step("b", confirm=op("ok", on="shop"))), generation=3).run()
    assert [(call.key, call.generation) for call in world.calls] == [
        ("s1/a@3", 3),
        ("s1/b@3", 3),
        ("s1/b@3/confirm", 3),
    ]
    assert world.row("a")["generation"] == 3


def test_summaries_are_what_people_read() -> None:
    definition = saga(
        step("a", name="Take it", confirm=op("ok", on="shop")), step("b", name="Pay"), step("p", kind="pivot")
    )
    world = World(definition, answers={"b": "unknown", "b~seal": "done"}).run()
    assert [call.summary for call in world.calls] == [
        "Take it",
        "Pay",
        "? did Pay happen",
        "↩ undo Pay",
        "↩ undo Take it",
    ]
    assert World(definition).run().calls[-1].summary == "✔ confirm Take it"


# --- rule 9 ----------------------------------------------------------------------------------------------------------


def test_rule_09_a_story_that_fits_is_left_alone() -> None:
    story = World(saga(step("a"))).run().story
    assert shrink_view(story, 100_000) is story


@pytest.mark.parametrize("limit", [400_000, 60_000, 8_000])
def test_rule_09_inputs_and_results_go_first_then_finished_items(limit: int) -> None:
    definition = saga(step("a", for_each="${{ input.n }}", max_parallel=50), step("b", on_failure="park"))
    answers: dict[str, Any] = {"b": "rejected"}
    world = World(definition, {"n": list(range(500)), "big": "x" * 500_000}, answers).run()
    small = shrink_view(world.story, limit)
    assert len(json.dumps(small)) <= limit
    assert small["input"]["omitted"] == "size"
    assert [row["state"] for row in small["steps"] if row["id"] == "b"] == ["PARKED"]
    assert len(small["parked"]) == 1
    if limit < 100_000:
        assert small["steps_omitted"] == {"a DONE": 500}


def test_rule_09_a_result_too_large_before_the_commit_is_failed_and_not_retried() -> None:
    world = World(saga(step("a"), step("b")), answers={"b": "definition"}).run()
    assert world.log == ["a", "b", "a~undo"]


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
    world = World(saga(step("a"), broken)).run()
    assert world.state == "COMPENSATED"
    assert world.story["reason"]["kind"] == "definition"
    assert world.story["reason"]["step"] == "b"
    assert world.row("b")["state"] == "FAILED"
    assert world.log == ["a", "a~undo"]


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
    world = World(definition, answers=answers).run()
    assert world.state == "PARKED"
    assert world.story["parked"][0]["op"] == op_


def test_rule_10_a_person_heals_it_with_corrected_arguments() -> None:
    definition = saga(step("a", compensate=undo(op("un.a", BAD, on="shop"))), step("b"))
    world = World(definition, answers={"b": "rejected"}).run()
    world.decide("a", "retry", arguments={"x": 1})
    assert world.call("a~undo").arguments == {"x": 1}
    assert world.state == "COMPENSATED"


def test_rule_10_a_person_heals_it_with_a_corrected_definition() -> None:
    broken = saga(step("p", kind="pivot"), step("n", kind="retriable", with_=BAD))
    mended = saga(step("p", kind="pivot"), step("n", kind="retriable", with_={"x": 1}))
    world = World(broken).run()
    snapshot = World(mended).machine.snapshot()["definition"]
    world.decide("n", "retry", definition=snapshot)
    assert world.call("n").arguments == {"x": 1}
    assert world.state == "COMPLETED"


def test_rule_10_a_corrected_definition_with_other_steps_is_refused() -> None:
    world = World(saga(step("p", kind="pivot"), step("n", kind="retriable", with_=BAD))).run()
    other = World(saga(step("p", kind="pivot"), step("m", kind="retriable"))).machine.snapshot()["definition"]
    assert "other steps" in (world.refusal("n", "retry", definition=other) or "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kind": "read", "compensate": None}, "the kind of a"),
        ({"on": "bank"}, "the place of the action of a"),
        ({"on": None}, "the place of the action of a"),
        ({"for_each": "${{ [1] }}"}, "`for_each` of a"),
        ({"confirm": None}, "`confirm` of a"),
        ({"compensate": undo("un.a")}, "`compensate` of a"),
        ({"compensate": undo("un.a", "un.b", on="bank")}, "`compensate` of a"),
    ],
)
def test_rule_10_a_corrected_definition_keeps_where_effects_are_made_and_undone(
    changed: dict[str, Any], words: str
) -> None:
    plain = {"compensate": undo("un.a", "un.b"), "confirm": op("ok", {}, on="shop"), "on_failure": "park"}
    world = World(saga(step("a", **plain, with_=BAD))).run()
    other = World(saga(step("a", **{**plain, **changed}))).machine.snapshot()["definition"]
    assert words in (world.refusal("a", "retry", definition=other) or "")
    more = {**plain, "compensate": undo("un.a", "un.b", "un.c"), "retry": Retry(max_attempts=9)}
    fine = World(saga(step("a", **more))).machine.snapshot()["definition"]
    assert world.refusal("a", "retry", definition=fine) is None


@pytest.mark.parametrize(
    "nonsense", [{}, {"saga": "test"}, {"saga": "test", "steps": [7]}, {"saga": "test", "steps": 7}]
)
def test_rule_10_a_definition_that_is_none_is_refused(nonsense: dict[str, Any]) -> None:
    world = World(saga(step("a", with_=BAD, on_failure="park"))).run()
    assert "could carry" in (world.refusal("a", "retry", definition=nonsense) or "")


def test_rule_10_output_fails_as_a_pseudo_step() -> None:
    world = World(saga(step("a"), output="${{ input.none }}")).run()
    assert world.state == "PARKED"
    parked = world.story["parked"][0]
    assert (parked["step"], parked["decisions"]) == ("output", ["retry", "done"])
    assert "skip" in (world.refusal("output", "skip") or "")
    world.decide("output", "done", result={"x": 1})
    assert world.state == "COMPLETED"
    assert world.finishes[0].output == {"x": 1}


def test_rule_10_a_bug_in_a_for_each_can_be_mended_past_the_commit_point() -> None:
    broken = saga(step("p", kind="pivot"), step("n", kind="retriable", for_each="${{ input.none }}"))
    mended = saga(step("p", kind="pivot"), step("n", kind="retriable", for_each="${{ [1, 2] }}"))
    world = World(broken).run()
    assert world.states()["n"] == "PARKED"
    world.decide("n", "retry", definition=World(mended).machine.snapshot()["definition"])
    assert world.log == ["p", "n#0", "n#1"]
    assert world.state == "COMPLETED"


@pytest.mark.parametrize("place", ["b", "a~undo", "c~confirm"])
def test_rule_10_an_action_no_worker_knows_is_retried_uncounted(place: str) -> None:
    definition = saga(step("a"), step("b"), step("c", confirm=op("ok", on="shop")))
    answers: dict[str, Any] = {place: ["not_started"] * 20 + ["done"]}
    if place == "a~undo":
        answers["b"] = "rejected"
    world = World(definition, answers=answers).run()
    assert world.log.count(place) == 21
    assert world.call(place).earlier_attempts == 0
    assert world.now == START + 20 * 60
    assert world.state == ("COMPENSATED" if place == "a~undo" else "COMPLETED")
