"""Rules 1 to 3: register first, the order of undoing, and a compensation that fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.machine.driver import START, MachineDriver, op, probe, saga, step, undo

# --- rule 1 ----------------------------------------------------------------------------------------------------------


def test_rule_01_the_compensation_is_registered_before_the_step_is_scheduled() -> None:
    driver = MachineDriver(saga(step("a")), hold=["a"]).start()
    assert driver.row("a")["compensation"]["state"] == "PENDING"


@pytest.mark.parametrize(
    ("outcome", "seal", "undone", "state", "compensation"),
    [
        ("rejected", None, ["a"], "REJECTED", "PENDING"),  # nothing happened: stays PENDING
        (("failed", 1), None, ["a"], "FAILED", "PENDING"),
        ("unknown", "sealed", ["a"], "NOTHING_TO_UNDO", "NOTHING_TO_UNDO"),
        ("unknown", "done", ["b", "a"], "COMPENSATED", "DONE"),  # the seal lost: it had happened
        ("unknown", "late", ["a"], "COMPENSATED", "DONE"),
    ],
)
def test_rule_01_done_and_unresolved_unknown_steps_are_compensated(
    outcome: Any, seal: str | None, undone: list[str], state: str, compensation: str
) -> None:
    driver = MachineDriver(saga(step("a"), step("b")), answers={"b": outcome, "b~seal": seal or "sealed"}).run()
    assert driver.state == "COMPENSATED"
    assert driver.undone == undone
    assert driver.row("b")["state"] == state
    assert driver.row("b")["compensation"]["state"] == compensation


@pytest.mark.parametrize(
    ("answers", "outcome", "reason"),
    [
        ({"a": "unknown"}, "failed", "unknown"),
        ({"a": ("failed", 3)}, "failed", "failed"),
        ({"a": ("rejected", 2)}, "rejected", "rejected"),  # not believed, until the seal proves it
    ],
)
def test_a_seal_that_won_is_knowledge(answers: Any, outcome: str, reason: str) -> None:
    driver = MachineDriver(saga(step("a")), answers=answers).run()
    row = driver.row("a")
    assert (row["state"], row["outcome"]) == ("NOTHING_TO_UNDO", outcome)
    assert row["compensation"]["state"] == "NOTHING_TO_UNDO"
    assert driver.view.reason is not None
    assert driver.view.reason.kind == reason


def test_a_probe_that_is_believed_is_knowledge() -> None:
    definition = saga(step("a", do=op("do.a"), probe=probe(seals=True)))
    row = MachineDriver(definition, answers={"a": "unknown", "ask": "absent"}).run().row("a")
    assert (row["state"], row["outcome"]) == ("NOTHING_TO_UNDO", "failed")


def test_rule_01_a_lost_seal_gives_the_stored_result_to_the_compensation() -> None:
    with_ = {"id": "${{ steps.a.result.ok }}"}
    definition = saga(step("a", compensate=undo(op("un.a", with_, on="shop"))))
    driver = MachineDriver(definition, answers={"a": "unknown", "a~seal": "done"}).run()
    assert driver.call("a~undo").arguments == {"id": True}
    assert driver.call("a~undo").guard.known_done  # pyright: ignore[reportOptionalMemberAccess]
    assert driver.row("a")["outcome"] == "done"


@pytest.mark.parametrize(
    ("probe_result", "undone", "state"),
    [("absent", [], "NOTHING_TO_UNDO"), ("found", ["a"], "COMPENSATED"), ("unsure", ["a"], "COMPENSATED")],
)
def test_rule_01_an_unguarded_unknown_is_probed_and_else_compensated_with_a_null_result(
    probe_result: str, undone: list[str], state: str
) -> None:
    compensate = undo(op("un.a", {"result": "${{ steps.a.result }}"}))
    definition = saga(step("a", on=None, compensate=compensate, probe=probe(seals=True)), step("b"))
    driver = MachineDriver(definition, answers={"a": "unknown", "a~probe": probe_result, "b": "rejected"}).run()
    assert driver.state == "COMPENSATED"
    assert driver.undone == undone
    assert driver.row("a")["state"] == state
    if probe_result == "unsure":
        assert driver.call("a~undo").arguments == {"result": None}


def test_rule_01_a_probe_that_says_done_lets_the_saga_go_forward() -> None:
    definition = saga(step("a", on=None, probe=probe()), step("b"))
    driver = MachineDriver(definition, answers={"a": "unknown", "a~probe": "found"}).run()
    assert driver.state == "COMPLETED"
    assert driver.row("a")["result"] == {"found": True}


def test_rule_01_absent_is_believed_only_after_settle() -> None:
    definition = saga(step("a", on=None, probe=probe(), settle=45.0))
    driver = MachineDriver(definition, answers={"a": "unknown", "a~probe": "absent"}).run()
    assert driver.log == ["a", "a~probe", "a~probe"]
    assert driver.now == START + 45
    assert driver.state == "COMPENSATED"


def test_rule_01_probe_expressions_read_the_response() -> None:
    asked = probe(done="response.status == 200", absent="response.status == 404", result="response.body")
    definition = saga(step("a", on=None, probe=asked), output={"a": "${{ steps.a.result }}"})
    answers = {"a": "unknown", "a~probe": _result({"status": 200, "body": "b"})}
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.story["output"] == {"a": "b"}


def _result(value: Any) -> Any:
    from sagas.protocol.outcomes import Outcome

    return Outcome.done(value)


def test_rule_01_a_read_is_never_sealed_or_undone() -> None:
    driver = MachineDriver(saga(step("a"), step("r", kind="read")), answers={"r": "unknown"}).run()
    assert driver.log == ["a", "r", "a~undo"]
    assert driver.row("r")["state"] == "UNKNOWN"


# --- rule 2 ----------------------------------------------------------------------------------------------------------

DIAMOND = saga(
    step("a"),
    step("l1", needs=("a",)),
    step("l2", needs=("l1",)),
    step("r1", needs=("a",)),
    step("r2", needs=("r1",)),
    step("z", needs=("l2", "r2")),
    line=False,
)


def test_rule_02_undo_goes_in_reverse_topological_order_branches_in_parallel() -> None:
    driver = MachineDriver(DIAMOND, answers={"z": "rejected"}, hold=["l2~undo", "r2~undo"]).run()
    assert sorted(driver.flights) == ["l2~undo", "r2~undo"]
    driver.end("r2~undo")
    assert "r1~undo" in driver.log
    assert "a~undo" not in driver.log  # it waits for both branches
    driver.end("l2~undo")
    assert driver.state == "COMPENSATED"
    assert driver.undone[-1] == "a"


def test_rule_02_order_is_transitive_through_a_skipped_step() -> None:
    definition = saga(step("a"), step("s", if_="${{ false }}"), step("c"), step("d"))
    driver = MachineDriver(definition, answers={"d": "rejected"}, hold=["c~undo"]).run()
    assert driver.undone == ["c"]
    assert driver.row("s")["state"] == "SKIPPED"
    driver.end("c~undo")
    assert driver.undone == ["c", "a"]


def test_rule_02_items_are_undone_in_reverse_index_order() -> None:
    definition = saga(step("a", for_each="${{ input.n }}", max_parallel=3), step("b"))
    driver = MachineDriver(definition, {"n": [1, 2, 3]}, {"b": "rejected"}).run()
    assert driver.undone == ["a#2", "a#1", "a#0"]


def test_rule_02_no_compensation_starts_before_every_sibling_attempt_has_settled() -> None:
    definition = saga(step("a"), step("l", needs=("a",)), step("r", needs=("a",)), line=False)
    driver = MachineDriver(definition, answers={"r": "rejected"}, hold=["l"]).run()
    assert driver.state == "COMPENSATING"
    assert driver.undone == []
    assert driver.cancelled == ["l"]
    driver.end("l", "done")
    assert driver.undone == ["l", "a"]


def test_rule_02_a_cancelled_attempt_is_unknown_and_is_sealed() -> None:
    definition = saga(step("l"), step("r"), line=False)
    driver = MachineDriver(definition, answers={"r": "rejected"}, hold=["l"]).run()
    driver.end("l", "unknown")
    assert driver.log == ["l", "r", "l~seal"]
    assert driver.state == "COMPENSATED"


def test_rule_02_going_backward_starts_no_attempt_and_no_item() -> None:
    definition = saga(step("i", for_each="${{ [1, 2, 3] }}"), step("r"), line=False)
    driver = MachineDriver(definition, hold=["i#0"], answers={"r": "rejected"}).run()
    driver.end("i#0", "done")
    assert driver.log == ["i#0", "r", "i#0~undo"]
    assert driver.states() == {"i#0": "COMPENSATED", "i#1": "PENDING", "i#2": "PENDING", "r": "REJECTED"}


def test_rule_02_a_wait_ends_at_once() -> None:
    definition = saga(step("w", kind="read", uses="wait", with_={"for": "2h"}), step("r"), line=False)
    driver = MachineDriver(definition, hold=["r"]).start()
    assert driver.timers == {"w~wait": START + 7200}
    driver.end("r", "rejected")
    assert driver.timers == {}
    assert driver.state == "COMPENSATED"


def test_rule_02_a_parked_sibling_is_treated_by_its_outcome() -> None:
    definition = saga(step("p", on_failure="park"), step("r"), line=False)
    driver = MachineDriver(definition, answers={"p": "unknown", "p~seal": "done"}, hold=["r"]).start()
    assert driver.states()["p"] == "PARKED"
    driver.end("r", "rejected")
    assert driver.undone == ["p"]
    assert driver.story["parked"] == []


# --- rule 3 ----------------------------------------------------------------------------------------------------------

ALTERNATES = saga(step("a", compensate=undo("un.1", "un.2")), step("b"))


@pytest.mark.parametrize("outcome", ["rejected", ("failed", 1)])
def test_rule_03_a_compensation_definitely_without_effect_gives_way_to_the_next_alternate(outcome: Any) -> None:
    driver = MachineDriver(ALTERNATES, answers={"b": "rejected", "a~undo": outcome}).run()
    assert driver.log[-2:] == ["a~undo", "a~undo.1"]
    assert driver.call("a~undo.1").key == "s1/a/undo.1"
    assert driver.state == "COMPENSATED"
    assert driver.row("a")["compensation"]["uses"] == "un.2"


def test_rule_03_after_an_unknown_attempt_the_same_one_is_tried_until_max_attempts_then_parked() -> None:
    answers = {"b": "rejected", "a~undo": [("rejected", 2), ("rejected", 1)]}
    driver = MachineDriver(ALTERNATES, answers=answers).run()
    assert driver.log.count("a~undo") == 2  # attempts 1 and 2, then attempt 3 of 3
    assert "a~undo.1" not in driver.log
    assert driver.call("a~undo").earlier_attempts == 2
    assert driver.state == "PARKED"
    assert driver.story["parked"][0]["op"] == "undo"


def test_rule_03_a_compensation_that_stays_unknown_parks() -> None:
    driver = MachineDriver(ALTERNATES, answers={"b": "rejected", "a~undo": "unknown"}).run()
    assert driver.log.count("a~undo") == 1
    assert driver.state == "PARKED"


def test_rule_03_infrastructure_is_never_given_up() -> None:
    answers = {"b": "rejected", "a~undo": ["infrastructure"] * 20 + ["done"]}
    driver = MachineDriver(ALTERNATES, answers=answers).run()
    assert driver.state == "COMPENSATED"
    assert driver.log.count("a~undo") == 21


def test_rule_03_branches_that_do_not_wait_for_the_parked_compensation_go_on_and_it_resumes_there() -> None:
    answers = {"z": "rejected", "l2~undo": ["rejected", "done"]}
    driver = MachineDriver(DIAMOND, answers=answers).run()
    assert driver.undone == ["r2", "l2", "r1"]
    assert driver.state == "PARKED"
    driver.decide("l2", "retry")
    assert driver.undone == ["r2", "l2", "r1", "l2", "l1", "a"]
    assert driver.state == "COMPENSATED"


@pytest.mark.parametrize("outcome", ["rejected", "definition"])
def test_rule_03_a_confirm_parks_on_rejection_or_failed_without_retry(outcome: str) -> None:
    driver = MachineDriver(saga(step("a", confirm=op("ok", on="shop"))), answers={"a~confirm": outcome}).run()
    assert driver.state == "PARKED"
    assert driver.story["parked"][0]["op"] == "confirm"


@pytest.mark.parametrize("outcome", ["unknown", "failed", "infrastructure"])
def test_rule_03_any_other_end_of_a_confirm_is_repeated_without_limit(outcome: str) -> None:
    definition = saga(step("a", confirm=op("ok", on="shop")))
    driver = MachineDriver(definition, answers={"a~confirm": [outcome] * 30 + ["done"]}).run()
    assert driver.state == "COMPLETED"
    assert driver.log.count("a~confirm") == 31


@pytest.mark.parametrize("marker", ["unknown_effect", "confirmed"])
def test_an_undo_the_guard_cannot_perform_parks(marker: str) -> None:
    driver = MachineDriver(saga(step("a"), step("b")), answers={"b": "rejected", "a~undo": marker}).run()
    assert driver.state == "PARKED"


def test_an_undo_that_finds_nothing_says_so() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), answers={"b": "rejected", "a~undo": "nothing_to_undo"}).run()
    assert driver.row("a")["state"] == "NOTHING_TO_UNDO"
    assert driver.row("a")["outcome"] == "done"


# --- where the guard and the action live apart -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_on", "undo_on", "log", "modes"),
    [
        ("shop", "shop", ["a~undo"], ["decide"]),
        ("shop", "bank", ["a~undo-mark", "a~undo"], ["mark", "own"]),
        ("shop", None, ["a~undo-mark", "a~undo"], ["mark", None]),
        (None, "bank", ["a~undo"], ["own"]),
        (None, None, ["a~undo"], [None]),
    ],
)
def test_the_undo_is_decided_in_the_database_of_its_step(
    step_on: str | None, undo_on: str | None, log: list[str], modes: list[str | None]
) -> None:
    definition = saga(step("a", on=step_on, compensate=undo("un.a", on=undo_on)), step("b"))
    driver = MachineDriver(definition, answers={"b": "rejected"}).run()
    calls = [call for call in driver.calls if call.op == "undo"]
    assert [call.id for call in calls] == log
    assert [call.guard.mode if call.guard else None for call in calls] == modes
    assert driver.state == "COMPENSATED"


@pytest.mark.parametrize(("marker", "state"), [("nothing_to_undo", "COMPENSATED"), ("confirmed", "PARKED")])
def test_the_final_state_of_the_mark_is_kept(marker: str, state: str) -> None:
    definition = saga(step("a", compensate=undo("un.a", on="bank")), step("b"))
    driver = MachineDriver(definition, answers={"b": "rejected", "a~undo-mark": marker}).run()
    assert "a~undo" not in driver.log
    assert driver.state == state
