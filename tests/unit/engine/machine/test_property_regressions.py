"""What random lives (tests/unit/engine/machine_properties) once found wrong: each the smallest case, kept for good."""

from __future__ import annotations

import pytest

from sagas.definition.model import Retry
from sagas.protocol.messages import CallEnded
from tests.unit.engine.machine.driver import World, op, outcome, probe, saga, step, undo


def not_started(world: World, id: str) -> None:
    """The last attempt found no worker that knows the action, and nobody told how many there were."""
    world.flights.pop(id)
    world.hold.discard(id)
    world.feed(CallEnded(id, outcome("not_started"), world.now, None))


def test_an_attempt_that_found_no_worker_may_have_had_others_before_it() -> None:
    world = World(saga(step("a", kind="pivot")), answers={"a": "rejected"}, hold=["a"]).start()
    not_started(world, "a")
    world.wait(3_600)
    assert "a~seal" in world.log, "the rejection came from attempt 1 of the second call: the row has to decide"
    assert world.state == "COMPENSATED"


def test_such_a_step_is_resolved_and_undone_on_the_way_back() -> None:
    world = World(saga(step("a")), answers={"a~seal": "done"}, hold=["a"]).start()
    not_started(world, "a")
    world.cancel()
    assert world.row("a")["outcome"] == "done"
    assert world.undone == ["a"]


def test_the_only_attempt_that_found_no_worker_hides_nothing() -> None:
    once = op("do.a", on="shop", retry=Retry(max_attempts=1))
    world = World(saga(step("a", do=once)), hold=["a"]).start()
    not_started(world, "a")
    world.cancel()
    assert world.state == "COMPENSATED"
    assert "a~seal" not in world.log
    assert world.undone == []


def test_an_alternate_at_home_runs_after_the_first_one_was_decided_elsewhere() -> None:
    compensate = undo(op("un.far", on="bank"), op("un.near", on="shop"))
    world = World(saga(step("a", compensate=compensate), step("b")), answers={"b": "rejected", "un.far": "rejected"})
    world.run()
    assert world.state == "COMPENSATED"
    assert [call.guard.mode for call in world.calls if call.op == "undo" and call.guard] == ["mark", "own", "own"]


def test_a_seal_that_wins_after_a_cancel_starts_no_next_generation_of_the_pivot() -> None:
    pivot = step("a", kind="pivot", on_failure="park")
    world = World(saga(pivot), answers={"a": "rejected"}, hold=["a~seal"]).run()
    world.decide("a", "retry").cancel()
    world.end("a~seal", "sealed")
    assert world.state == "COMPENSATED"
    assert world.story["reason"]["kind"] == "cancelled"
    assert world.row("a")["generation"] == 1


@pytest.mark.parametrize("seals", [True, False])
def test_a_parked_step_that_a_probe_found_absent_has_nothing_to_undo(seals: bool) -> None:
    lost = step("a", do=op("do.a"), on_failure="park", probe=probe(seals=seals), settle=0.0)
    world = World(saga(lost), answers={"a": "unknown", "ask": "absent"}).run()
    assert world.state == "PARKED"
    world.decide("a", "compensate")
    assert world.state == "COMPENSATED"
    assert world.row("a")["state"] == "NOTHING_TO_UNDO"
    assert world.undone == []


def test_what_a_person_did_by_hand_after_a_probe_said_absent_is_undone_on_the_way_back() -> None:
    lost = step("a", do=op("do.a"), on_failure="park", probe=probe(seals=True))
    definition = saga(lost, step("b"))
    world = World(definition, answers={"a": "unknown", "ask": "absent", "b": "rejected"}).run()
    assert world.row("a")["compensation"]["state"] == "NOTHING_TO_UNDO"
    world.decide("a", "done", result={"by": "hand"}, evidence="seen").run()
    assert world.state == "COMPENSATED"
    assert world.undone == ["a"]


def asking_pivot() -> World:
    """A keyless pivot, PARKED, whose probe in the background has just been asked and has not answered."""
    do = op("do.a", idempotent=False, retry=Retry(max_attempts=1))
    definition = saga(step("a", kind="pivot", do=do, probe=probe(seals=True)))
    world = World(definition, answers={"a": "unknown", "ask": "unsure"}).run()
    assert world.state == "PARKED"
    world.hold.add("a~probe")
    return world.fire("a~ask")


@pytest.mark.parametrize("answer", ["absent", "unsure", "unknown"])
@pytest.mark.parametrize(
    ("decision", "state"), [("retry", "COMPLETED"), ("done", "COMPLETED"), ("compensate", "COMPENSATED")]
)
def test_a_decision_waits_for_the_probe_in_the_background(answer: str, decision: str, state: str) -> None:
    world = asking_pivot()
    world.decide("a", decision, evidence="seen")
    assert "a~probe" in world.flights
    assert world.state == "RUNNING"
    assert world.row("a")["state"] == "RUNNING"
    assert world.story["parked"] == []
    world.answers |= {"a": "done", "ask": "absent"}
    world.end("a~probe", answer).wait(3_600)
    assert world.state == state


def test_a_probe_that_finds_the_effect_wins_over_the_decision() -> None:
    world = asking_pivot()
    world.decide("a", "compensate", evidence="I thought so")
    world.end("a~probe", "found")
    assert world.state == "COMPLETED"


@pytest.mark.parametrize(
    ("op_name", "held", "state"),
    [("do", "a~seal", "RUNNING"), ("undo", "a~undo", "COMPENSATING"), ("confirm", "a~confirm", "CONFIRMING")],
)
def test_after_a_decision_an_entry_is_not_parked_any_more(op_name: str, held: str, state: str) -> None:
    definition = {
        "do": saga(step("a", on_failure="park")),
        "undo": saga(step("a"), step("b")),
        "confirm": saga(step("a", confirm=op("con.a", {}, on="shop"))),
    }[op_name]
    answers = {
        "do": {"a": "rejected"},
        "undo": {"b": "rejected", "un.a": "definition"},
        "confirm": {"con.a": "rejected"},
    }
    world = World(definition, answers=answers[op_name]).run()
    assert world.row("a")["state"] == "PARKED"
    world.hold.add(held)
    world.decide("a", "retry")
    assert world.row("a")["state"] == state
    assert world.story["parked"] == []


def test_a_cancel_while_the_guard_does_not_take_a_persons_done_yet_undoes_what_the_person_made() -> None:
    world = World(saga(step("a", on_failure="park")), answers={"a": "rejected", "saga.done": ["not_started", "done"]})
    world.run().decide("a", "done", result={"by": "hand"})
    world.cancel()
    assert world.state == "COMPENSATING"
    world.run()
    assert world.state == "COMPENSATED"
    assert world.row("a")["outcome"] == "done"
    assert world.undone == ["a"]


def test_a_cancel_while_a_persons_done_waits_for_the_attempt_in_flight_undoes_what_the_person_made() -> None:
    world = World(saga(step("a", on_failure="park")), hold=["a"]).start()
    world.now += 1_000
    world.decide("a", "done", result={"by": "hand"})
    world.cancel()
    world.end("a", "rejected")
    assert world.state == "COMPENSATED"
    assert world.undone == ["a"]


def test_the_undo_of_a_continued_step_knows_the_reason_although_the_saga_goes_on() -> None:
    how = op("un.a", {"why": "${{ saga.reason.kind }}: ${{ saga.reason.message }}"}, on="shop")
    alone = step("a", on_failure="continue", compensate=undo(how), retry=Retry(max_attempts=1), on=None)
    world = World(saga(alone, step("b")), answers={"a": "unknown"}).start()
    assert world.calls[1].arguments == {"why": "unknown: no answer"}
    assert world.state == "COMPLETED"


@pytest.mark.parametrize(("mended", "state"), [("${{ false }}", "SKIPPED"), ("${{ true }}", "DONE")])
def test_a_retry_evaluates_the_condition_that_failed_again(mended: str, state: str) -> None:
    world = World(saga(step("a", if_="${{ input.none }}", on_failure="park"), step("b"))).run()
    world.decide("a", "retry")
    assert world.log == [], "whether the step shall run is not known yet"
    assert world.row("a")["state"] == "PARKED"
    other = World(saga(step("a", if_=mended, on_failure="park"), step("b"))).machine.snapshot()["definition"]
    world.decide("a", "retry", definition=other, arguments={"n": 1})
    assert world.row("a")["state"] == state
    assert world.state == "COMPLETED"
    if state == "DONE":
        assert world.call("a").arguments == {"n": 1}


def test_a_signal_that_comes_while_a_wait_is_parked_answers_its_retry() -> None:
    waits = {"signal": "go", "timeout": "10s", "on_timeout": "park"}
    world = World(saga(step("a", kind="read", uses="wait", with_=waits, on=None))).run()
    assert world.state == "PARKED"
    world.signal("go", {"n": 1}).decide("a", "retry")
    assert world.row("a")["result"]["data"] == {"n": 1}
    assert world.state == "COMPLETED"


@pytest.mark.parametrize("decision", ["done", "skip", "compensate"])
def test_a_fairness_key_that_fails_holds_up_no_other_way_out(decision: str) -> None:
    world = World(saga(step("a", fairness_key="${{ input.none }}", on_failure="park"), step("b"))).run()
    assert world.row("a")["error"]["type"] == "definition"
    world.decide("a", decision, result={"by": "hand"})
    assert world.state == ("COMPENSATED" if decision == "compensate" else "COMPLETED")


def test_an_undo_of_confirmed_effects_that_fails_holds_up_nothing_that_was_not_confirmed() -> None:
    broken = op("un.confirmed", {"x": "${{ input.none }}"}, on="shop")
    confirmed = step("a", confirm=op("ok", {}, on="shop"), compensate=undo("un.a", confirmed=broken))
    world = World(saga(confirmed, step("b")), answers={"b": "rejected"}).run()
    assert world.state == "COMPENSATED"
    assert world.undone == ["a"]


def test_corrected_arguments_are_for_the_alternate_that_was_stuck() -> None:
    broken = op("un.one", {"x": "${{ input.none }}"}, on=None)
    two = op("un.two", {"y": 2}, on=None)
    world = World(saga(step("a", on=None, compensate=undo(broken, two)), step("b")), answers={"b": "rejected"}).run()
    world.answers["un.one"] = "rejected"
    world.decide("a", "retry", arguments={"x": 1})
    assert [(c.action, dict(c.arguments)) for c in world.calls if c.op == "undo"] == [
        ("un.one", {"x": 1}),
        ("un.two", {"y": 2}),
    ]
    assert world.state == "COMPENSATED"


def test_a_retry_of_a_pivot_whose_seal_is_under_way_starts_nothing_after_a_cancel() -> None:
    world = World(saga(step("a", kind="pivot")), answers={"a": "unknown"}, hold=["a", "a~seal"]).start()
    world.cancel().end("a", "unknown")
    world.wait(1_000)
    world.decide("a", "retry")
    world.end("a~seal", "definition")
    assert world.log == ["a", "a~seal", "a~seal"]
    assert world.state == "COMPENSATED"


def test_a_nested_saga_that_never_ran_and_was_done_by_hand_is_left_to_a_person_on_the_way_back() -> None:
    broken = step("a", uses="saga", with_={"name": "${{ input.none }}"}, on=None, compensate=None, on_failure="park")
    world = World(saga(broken, step("b")), answers={"b": "rejected"}).run()
    world.decide("a", "done", result={"by": "hand"})
    assert world.state == "PARKED"
    assert world.story["parked"][0]["op"] == "undo"
    world.decide("a", "done", evidence="I have seen to it")
    assert world.state == "COMPENSATED"


def test_while_an_attempt_without_a_guard_is_in_flight_nobody_gives_it_other_arguments() -> None:
    world = World(saga(step("a", on=None)), hold=["a"]).start()
    world.now += 1_000
    assert "may have happened" in (world.refusal("a", "retry", arguments={"n": 2}) or "")
    assert world.refusal("a", "retry") is None


def test_a_decision_while_the_way_back_asks_whether_a_step_happened_is_about_its_undo() -> None:
    world = World(saga(step("a"), step("b", needs=()), line=False), answers={"a~seal": "unknown"}, hold=["a", "b"])
    world.start().cancel()
    world.end("a", "unknown").end("b", "rejected")
    world.wait(1_000)
    assert world.row("a")["state"] == "UNKNOWN"
    world.decide("a", "done", evidence="I have undone it")
    assert world.log[-1] == "a~write"
    assert world.state == "COMPENSATED"
    assert world.row("a")["compensation"]["state"] == "DONE"


@pytest.mark.parametrize("kind", ["undo", "confirm"])
def test_corrected_arguments_that_come_while_the_guard_decides_are_those_of_the_action(kind: str) -> None:
    far = op("far", {"x": 1}, on="bank")
    if kind == "undo":
        world = World(saga(step("a", compensate=undo(far)), step("b")), answers={"b": "rejected"}, hold=["a~undo-mark"])
    else:
        world = World(saga(step("a", confirm=far)), hold=["a~confirm-mark"])
    world.start()
    world.now += 1_000
    world.decide("a", "retry", arguments={"x": 2})
    world.end(f"a~{kind}-mark", "elsewhere")
    assert [dict(call.arguments) for call in world.calls if call.action == "far"] == [{"x": 2}]
    assert world.state == ("COMPENSATED" if kind == "undo" else "COMPLETED")


def test_a_pivot_that_failed_before_its_first_attempt_may_have_happened_after_the_next_one() -> None:
    pivot = step("p", kind="pivot", on=None, with_={"x": "${{ input.none }}"}, on_failure="park")
    world = World(saga(pivot), answers={"p": ["unknown", "done"]}).run()
    world.decide("p", "retry", arguments={"x": 1}).decide("p", "retry")
    assert [call.key for call in world.calls] == ["s1/p", "s1/p"], "a new key would double the effect"
    assert world.state == "COMPLETED"
