"""Regressions found by tests/unit/engine/machine_properties: the smallest case of each."""

from __future__ import annotations

import pytest

from sagas.definition.model import Retry
from sagas.protocol.messages import CallEnded
from tests.unit.engine.machine.driver import MachineDriver, op, outcome, probe, saga, step, undo


def not_started(driver: MachineDriver, id: str, attempts: int | None = None) -> None:
    """The last attempt found no worker with the action; ``attempts`` before it count, None: their number is unknown."""
    driver.flights.pop(id)
    driver.hold.discard(id)
    driver.feed(CallEnded(id, outcome("not_started"), driver.now, attempts))


def test_an_unstarted_attempt_may_have_predecessors() -> None:
    driver = MachineDriver(saga(step("a", kind="pivot")), answers={"a": "rejected"}, hold=["a"]).start()
    not_started(driver, "a")
    driver.wait(3_600)
    assert "a~seal" in driver.log, "the rejection came from attempt 1 of the second call: the row has to decide"
    assert driver.state == "COMPENSATED"


def test_an_unstarted_step_is_resolved_and_undone_during_rollback() -> None:
    driver = MachineDriver(saga(step("a")), answers={"a~seal": "done"}, hold=["a"]).start()
    not_started(driver, "a")
    driver.cancel()
    assert driver.row("a")["outcome"] == "done"
    assert driver.undone == ["a"]


def test_a_single_unstarted_attempt_hides_nothing() -> None:
    once = op("do.a", on="shop", retry=Retry(max_attempts=1))
    driver = MachineDriver(saga(step("a", do=once)), hold=["a"]).start()
    not_started(driver, "a", attempts=0)
    driver.cancel()
    assert driver.state == "COMPENSATED"
    assert "a~seal" not in driver.log
    assert driver.undone == []


def test_an_alternate_at_home_runs_after_the_first_one_was_decided_elsewhere() -> None:
    compensate = undo(op("un.far", on="bank"), op("un.near", on="shop"))
    driver = MachineDriver(
        saga(step("a", compensate=compensate), step("b")), answers={"b": "rejected", "un.far": "rejected"}
    )
    driver.run()
    assert driver.state == "COMPENSATED"
    assert [call.guard.mode for call in driver.calls if call.op == "undo" and call.guard] == ["mark", "own", "own"]


def test_a_seal_that_wins_after_a_cancel_starts_no_next_generation_of_the_pivot() -> None:
    pivot = step("a", kind="pivot", on_failure="park")
    driver = MachineDriver(saga(pivot), answers={"a": "rejected"}, hold=["a~seal"]).run()
    driver.decide("a", "retry").cancel()
    driver.end("a~seal", "sealed")
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["kind"] == "cancelled"
    assert driver.row("a")["generation"] == 1


@pytest.mark.parametrize("seals", [True, False])
def test_a_parked_step_that_a_probe_found_absent_has_nothing_to_undo(seals: bool) -> None:
    lost = step("a", do=op("do.a"), on_failure="park", probe=probe(seals=seals), settle=0.0)
    driver = MachineDriver(saga(lost), answers={"a": "unknown", "ask": "absent"}).run()
    assert driver.state == "PARKED"
    driver.decide("a", "compensate")
    assert driver.state == "COMPENSATED"
    assert driver.row("a")["state"] == "NOTHING_TO_UNDO"
    assert driver.undone == []


def test_a_manual_effect_after_a_negative_probe_is_undone_in_rollback() -> None:
    lost = step("a", do=op("do.a"), on_failure="park", probe=probe(seals=True))
    definition = saga(lost, step("b"))
    driver = MachineDriver(definition, answers={"a": "unknown", "ask": "absent", "b": "rejected"}).run()
    assert driver.row("a")["compensation"]["state"] == "NOTHING_TO_UNDO"
    driver.decide("a", "done", result={"by": "hand"}, evidence="seen").run()
    assert driver.state == "COMPENSATED"
    assert driver.undone == ["a"]


def asking_pivot() -> MachineDriver:
    """A keyless pivot, PARKED, whose background probe is in flight."""
    do = op("do.a", idempotent=False, retry=Retry(max_attempts=1))
    definition = saga(step("a", kind="pivot", do=do, probe=probe(seals=True)))
    driver = MachineDriver(definition, answers={"a": "unknown", "ask": "unsure"}).run()
    assert driver.state == "PARKED"
    driver.hold.add("a~probe")
    return driver.fire("a~ask")


@pytest.mark.parametrize("answer", ["absent", "unsure", "unknown"])
@pytest.mark.parametrize(
    ("decision", "state"), [("retry", "COMPLETED"), ("done", "COMPLETED"), ("compensate", "COMPENSATED")]
)
def test_a_decision_waits_for_the_probe_in_the_background(answer: str, decision: str, state: str) -> None:
    driver = asking_pivot()
    driver.decide("a", decision, evidence="seen")
    assert "a~probe" in driver.flights
    assert driver.state == "RUNNING"
    assert driver.row("a")["state"] == "RUNNING"
    assert driver.story["parked"] == []
    driver.answers |= {"a": "done", "ask": "absent"}
    driver.end("a~probe", answer).wait(3_600)
    assert driver.state == state


def test_a_probe_that_finds_the_effect_wins_over_the_decision() -> None:
    driver = asking_pivot()
    driver.decide("a", "compensate", evidence="I thought so")
    driver.end("a~probe", "found")
    assert driver.state == "COMPLETED"


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
    driver = MachineDriver(definition, answers=answers[op_name]).run()
    assert driver.row("a")["state"] == "PARKED"
    driver.hold.add(held)
    driver.decide("a", "retry")
    assert driver.row("a")["state"] == state
    assert driver.story["parked"] == []


def test_a_cancel_before_the_guard_records_a_manual_done_undoes_it() -> None:
    driver = MachineDriver(
        saga(step("a", on_failure="park")), answers={"a": "rejected", "saga.done": ["not_started", "done"]}
    )
    driver.run().decide("a", "done", result={"by": "hand"})
    driver.cancel()
    assert driver.state == "COMPENSATING"
    driver.run()
    assert driver.state == "COMPENSATED"
    assert driver.row("a")["outcome"] == "done"
    assert driver.undone == ["a"]


def test_a_cancel_while_a_manual_done_waits_for_an_attempt_undoes_it() -> None:
    driver = MachineDriver(saga(step("a", on_failure="park")), hold=["a"]).start()
    driver.now += 1_000
    driver.decide("a", "done", result={"by": "hand"})
    driver.cancel()
    driver.end("a", "rejected")
    assert driver.state == "COMPENSATED"
    assert driver.undone == ["a"]


def test_the_undo_of_a_continued_step_knows_the_reason_although_the_saga_goes_on() -> None:
    how = op("un.a", {"why": "${{ saga.reason.kind }}: ${{ saga.reason.message }}"}, on="shop")
    alone = step("a", on_failure="continue", compensate=undo(how), retry=Retry(max_attempts=1), on=None)
    driver = MachineDriver(saga(alone, step("b")), answers={"a": "unknown"}).start()
    assert driver.calls[1].arguments == {"why": "unknown: no answer"}
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize(("repaired", "state"), [("${{ false }}", "SKIPPED"), ("${{ true }}", "DONE")])
def test_a_retry_evaluates_the_condition_that_failed_again(repaired: str, state: str) -> None:
    driver = MachineDriver(saga(step("a", if_="${{ input.none }}", on_failure="park"), step("b"))).run()
    driver.decide("a", "retry")
    assert driver.log == [], "whether the step shall run is not known yet"
    assert driver.row("a")["state"] == "PARKED"
    other = MachineDriver(saga(step("a", if_=repaired, on_failure="park"), step("b"))).machine.snapshot()["definition"]
    driver.decide("a", "retry", definition=other, arguments={"n": 1})
    assert driver.row("a")["state"] == state
    assert driver.state == "COMPLETED"
    if state == "DONE":
        assert driver.call("a").arguments == {"n": 1}


def test_a_signal_that_comes_while_a_wait_is_parked_answers_its_retry() -> None:
    waits = {"signal": "go", "timeout": "10s", "on_timeout": "park"}
    driver = MachineDriver(saga(step("a", kind="read", uses="wait", with_=waits, on=None))).run()
    assert driver.state == "PARKED"
    driver.signal("go", {"n": 1}).decide("a", "retry")
    assert driver.row("a")["result"]["data"] == {"n": 1}
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize("decision", ["done", "skip", "compensate"])
def test_a_failing_fairness_key_blocks_no_other_decision(decision: str) -> None:
    driver = MachineDriver(saga(step("a", fairness_key="${{ input.none }}", on_failure="park"), step("b"))).run()
    assert driver.row("a")["error"]["type"] == "definition"
    driver.decide("a", decision, result={"by": "hand"} if decision == "done" else None)
    assert driver.state == ("COMPENSATED" if decision == "compensate" else "COMPLETED")


def test_a_failing_confirmed_undo_blocks_no_unconfirmed_undo() -> None:
    broken = op("un.confirmed", {"x": "${{ input.none }}"}, on="shop")
    confirmed = step("a", confirm=op("ok", {}, on="shop"), compensate=undo("un.a", confirmed=broken))
    driver = MachineDriver(saga(confirmed, step("b")), answers={"b": "rejected"}).run()
    assert driver.state == "COMPENSATED"
    assert driver.undone == ["a"]


def test_corrected_arguments_are_for_the_alternate_that_was_stuck() -> None:
    broken = op("un.one", {"x": "${{ input.none }}"}, on=None)
    two = op("un.two", {"y": 2}, on=None)
    driver = MachineDriver(
        saga(step("a", on=None, compensate=undo(broken, two)), step("b")), answers={"b": "rejected"}
    ).run()
    driver.answers["un.one"] = "rejected"
    driver.decide("a", "retry", arguments={"x": 1})
    assert [(c.action, dict(c.arguments)) for c in driver.calls if c.op == "undo"] == [
        ("un.one", {"x": 1}),
        ("un.two", {"y": 2}),
    ]
    assert driver.state == "COMPENSATED"


def test_a_retry_of_a_pivot_whose_seal_is_under_way_starts_nothing_after_a_cancel() -> None:
    driver = MachineDriver(saga(step("a", kind="pivot")), answers={"a": "unknown"}, hold=["a", "a~seal"]).start()
    driver.cancel().end("a", "unknown")
    driver.wait(1_000)
    driver.decide("a", "retry")
    driver.end("a~seal", "definition")
    assert driver.log == ["a", "a~seal", "a~seal"]
    assert driver.state == "COMPENSATED"


def test_a_manually_done_nested_saga_parks_in_rollback() -> None:
    broken = step("a", uses="saga", with_={"name": "${{ input.none }}"}, on=None, compensate=None, on_failure="park")
    driver = MachineDriver(saga(broken, step("b")), answers={"b": "rejected"}).run()
    driver.decide("a", "done", result={"by": "hand"})
    assert driver.state == "PARKED"
    assert driver.story["parked"][0]["op"] == "undo"
    driver.decide("a", "done", evidence="I have seen to it")
    assert driver.state == "COMPENSATED"


def test_an_unguarded_attempt_in_flight_keeps_its_arguments() -> None:
    driver = MachineDriver(saga(step("a", on=None)), hold=["a"]).start()
    driver.now += 1_000
    assert "may have taken effect" in (driver.refusal("a", "retry", arguments={"n": 2}) or "")
    assert driver.refusal("a", "retry") is None


def test_a_decision_during_the_rollback_probe_applies_to_the_undo() -> None:
    driver = MachineDriver(
        saga(step("a"), step("b", needs=()), line=False), answers={"a~seal": "unknown"}, hold=["a", "b"]
    )
    driver.start().cancel()
    driver.end("a", "unknown").end("b", "rejected")
    driver.wait(1_000)
    assert driver.row("a")["state"] == "UNKNOWN"
    driver.decide("a", "done", evidence="I have undone it")
    assert driver.log[-1] == "a~write"
    assert driver.state == "COMPENSATED"
    assert driver.row("a")["compensation"]["state"] == "DONE"


@pytest.mark.parametrize("kind", ["undo", "confirm"])
def test_arguments_corrected_while_the_guard_decides_apply_to_the_action(kind: str) -> None:
    remote = op("far", {"x": 1}, on="bank")
    if kind == "undo":
        driver = MachineDriver(
            saga(step("a", compensate=undo(remote)), step("b")), answers={"b": "rejected"}, hold=["a~undo-mark"]
        )
    else:
        driver = MachineDriver(saga(step("a", confirm=remote)), hold=["a~confirm-mark"])
    driver.start()
    driver.now += 1_000
    driver.decide("a", "retry", arguments={"x": 2})
    driver.end(f"a~{kind}-mark", "elsewhere")
    assert [dict(call.arguments) for call in driver.calls if call.action == "far"] == [{"x": 2}]
    assert driver.state == ("COMPENSATED" if kind == "undo" else "COMPLETED")


def test_a_pivot_that_failed_before_its_first_attempt_may_have_happened_after_the_next_one() -> None:
    pivot = step("p", kind="pivot", on=None, with_={"x": "${{ input.none }}"}, on_failure="park")
    driver = MachineDriver(saga(pivot), answers={"p": ["unknown", "done"]}).run()
    driver.decide("p", "retry", arguments={"x": 1}).decide("p", "retry")
    assert [call.key for call in driver.calls] == ["s1/p", "s1/p"], "a new key would double the effect"
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize("in_flight", [True, False])
@pytest.mark.parametrize("decision", ["done", "skip", "retry"])
def test_a_decision_about_an_unknown_step_of_a_rollback_is_about_its_undo(decision: str, in_flight: bool) -> None:
    """A lookup that began before the rollback counts as part of the undo: an operator cannot tell them apart."""
    lost = step("a", on_failure="continue")
    driver = MachineDriver(saga(lost), answers={"a": "unknown", "a~seal": "unknown"}, hold=["a~seal"]).start()
    driver.cancel()
    if not in_flight:
        driver.end("a~seal", "unknown")
    driver.wait(16 * 60)
    assert driver.row("a")["state"] == "UNKNOWN"
    driver.decide("a", decision, evidence="seen")
    driver.answers["a~seal"] = "done"
    if in_flight:
        driver.end("a~seal", "done")
    driver.wait(3_600)
    assert driver.state == {"done": "COMPENSATED", "skip": "RESIDUE", "retry": "COMPENSATED"}[decision]
    assert ("un.a" in [call.action for call in driver.calls]) == (decision == "retry")
