"""Rules 1 to 3: register first, the order of undoing, and a compensation that fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.machine.driver import START, World, op, probe, saga, step, undo

# --- rule 1 ----------------------------------------------------------------------------------------------------------


def test_rule_01_the_compensation_is_registered_before_the_step_is_scheduled() -> None:
    world = World(saga(step("a")), hold=["a"]).start()
    assert world.row("a")["compensation"]["state"] == "PENDING"


@pytest.mark.parametrize(
    ("word", "seal", "undone", "state", "compensation"),
    [
        ("rejected", None, ["a"], "REJECTED", "PENDING"),  # nothing happened: stays PENDING
        (("failed", 1), None, ["a"], "FAILED", "PENDING"),
        ("unknown", "sealed", ["a"], "NOTHING_TO_UNDO", "NOTHING_TO_UNDO"),
        ("unknown", "done", ["b", "a"], "COMPENSATED", "DONE"),  # the seal lost: it had happened
        ("unknown", "late", ["a"], "COMPENSATED", "DONE"),
    ],
)
def test_rule_01_done_and_unresolved_unknown_steps_are_compensated(
    word: Any, seal: str | None, undone: list[str], state: str, compensation: str
) -> None:
    world = World(saga(step("a"), step("b")), answers={"b": word, "b~seal": seal or "sealed"}).run()
    assert world.state == "COMPENSATED"
    assert world.undone == undone
    assert world.row("b")["state"] == state
    assert world.row("b")["compensation"]["state"] == compensation


def test_rule_01_the_outcome_forward_is_not_overwritten_by_a_seal_that_won() -> None:
    world = World(saga(step("a")), answers={"a": "unknown"}).run()
    assert world.row("a")["outcome"] == "unknown"


def test_rule_01_a_lost_seal_gives_the_stored_result_to_the_compensation() -> None:
    with_ = {"id": "${{ steps.a.result.ok }}"}
    definition = saga(step("a", compensate=undo(op("un.a", with_, on="shop"))))
    world = World(definition, answers={"a": "unknown", "a~seal": "done"}).run()
    assert world.call("a~undo").arguments == {"id": True}
    assert world.call("a~undo").guard.known_done  # pyright: ignore[reportOptionalMemberAccess]
    assert world.row("a")["outcome"] == "done"


@pytest.mark.parametrize(
    ("said", "undone", "state"),
    [("absent", [], "NOTHING_TO_UNDO"), ("found", ["a"], "COMPENSATED"), ("unsure", ["a"], "COMPENSATED")],
)
def test_rule_01_an_unguarded_unknown_is_probed_and_else_compensated_with_a_null_result(
    said: str, undone: list[str], state: str
) -> None:
    compensate = undo(op("un.a", {"result": "${{ steps.a.result }}"}))
    definition = saga(step("a", on=None, compensate=compensate, probe=probe(seals=True)), step("b"))
    world = World(definition, answers={"a": "unknown", "a~probe": said, "b": "rejected"}).run()
    assert world.state == "COMPENSATED"
    assert world.undone == undone
    assert world.row("a")["state"] == state
    if said == "unsure":
        assert world.call("a~undo").arguments == {"result": None}


def test_rule_01_a_probe_that_says_done_lets_the_saga_go_forward() -> None:
    definition = saga(step("a", on=None, probe=probe()), step("b"))
    world = World(definition, answers={"a": "unknown", "a~probe": "found"}).run()
    assert world.state == "COMPLETED"
    assert world.row("a")["result"] == {"found": True}


def test_rule_01_absent_is_believed_only_after_settle() -> None:
    definition = saga(step("a", on=None, probe=probe(), settle=45.0))
    world = World(definition, answers={"a": "unknown", "a~probe": "absent"}).run()
    assert world.log == ["a", "a~probe", "a~probe"]
    assert world.now == START + 45
    assert world.state == "COMPENSATED"


def test_rule_01_probe_expressions_read_the_response() -> None:
    asked = probe(done="response.status == 200", absent="response.status == 404", result="response.body")
    definition = saga(step("a", on=None, probe=asked), output={"a": "${{ steps.a.result }}"})
    answers = {"a": "unknown", "a~probe": _result({"status": 200, "body": "b"})}
    world = World(definition, answers=answers).run()
    assert world.story["output"] == {"a": "b"}


def _result(value: Any) -> Any:
    from sagas.protocol.outcomes import Outcome

    return Outcome.done(value)


def test_rule_01_a_read_is_never_sealed_or_undone() -> None:
    world = World(saga(step("a"), step("r", kind="read")), answers={"r": "unknown"}).run()
    assert world.log == ["a", "r", "a~undo"]
    assert world.row("r")["state"] == "UNKNOWN"


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
    world = World(DIAMOND, answers={"z": "rejected"}, hold=["l2~undo", "r2~undo"]).run()
    assert sorted(world.flights) == ["l2~undo", "r2~undo"]
    world.end("r2~undo")
    assert "r1~undo" in world.log
    assert "a~undo" not in world.log  # it waits for both branches
    world.end("l2~undo")
    assert world.state == "COMPENSATED"
    assert world.undone[-1] == "a"


def test_rule_02_order_is_transitive_through_a_skipped_step() -> None:
    definition = saga(step("a"), step("s", if_="${{ false }}"), step("c"), step("d"))
    world = World(definition, answers={"d": "rejected"}, hold=["c~undo"]).run()
    assert world.undone == ["c"]
    assert world.row("s")["state"] == "SKIPPED"
    world.end("c~undo")
    assert world.undone == ["c", "a"]


def test_rule_02_items_are_undone_in_reverse_index_order() -> None:
    definition = saga(step("a", for_each="${{ input.n }}", max_parallel=3), step("b"))
    world = World(definition, {"n": [1, 2, 3]}, {"b": "rejected"}).run()
    assert world.undone == ["a#2", "a#1", "a#0"]


def test_rule_02_no_compensation_starts_before_every_sibling_attempt_has_settled() -> None:
    definition = saga(step("a"), step("l", needs=("a",)), step("r", needs=("a",)), line=False)
    world = World(definition, answers={"r": "rejected"}, hold=["l"]).run()
    assert world.state == "COMPENSATING"
    assert world.undone == []
    assert world.cancelled == ["l"]
    world.end("l", "done")
    assert world.undone == ["l", "a"]


def test_rule_02_a_cancelled_attempt_is_unknown_and_is_sealed() -> None:
    definition = saga(step("l"), step("r"), line=False)
    world = World(definition, answers={"r": "rejected"}, hold=["l"]).run()
    world.end("l", "unknown")
    assert world.log == ["l", "r", "l~seal"]
    assert world.state == "COMPENSATED"


def test_rule_02_going_backward_starts_no_attempt_and_no_item() -> None:
    definition = saga(step("i", for_each="${{ [1, 2, 3] }}"), step("r"), line=False)
    world = World(definition, hold=["i#0"], answers={"r": "rejected"}).run()
    world.end("i#0", "done")
    assert world.log == ["i#0", "r", "i#0~undo"]
    assert world.states() == {"i#0": "COMPENSATED", "i#1": "PENDING", "i#2": "PENDING", "r": "REJECTED"}


def test_rule_02_a_wait_ends_at_once() -> None:
    definition = saga(step("w", kind="read", uses="wait", with_={"for": "2h"}), step("r"), line=False)
    world = World(definition, hold=["r"]).start()
    assert world.timers == {"w~wait": START + 7200}
    world.end("r", "rejected")
    assert world.timers == {}
    assert world.state == "COMPENSATED"


def test_rule_02_a_parked_sibling_is_treated_by_its_outcome() -> None:
    definition = saga(step("p", on_failure="park"), step("r"), line=False)
    world = World(definition, answers={"p": "unknown", "p~seal": "done"}, hold=["r"]).start()
    assert world.states()["p"] == "PARKED"
    world.end("r", "rejected")
    assert world.undone == ["p"]
    assert world.story["parked"] == []


# --- rule 3 ----------------------------------------------------------------------------------------------------------

ALTERNATES = saga(step("a", compensate=undo("un.1", "un.2")), step("b"))


@pytest.mark.parametrize("word", ["rejected", ("failed", 1)])
def test_rule_03_a_compensation_definitely_without_effect_gives_way_to_the_next_alternate(word: Any) -> None:
    world = World(ALTERNATES, answers={"b": "rejected", "a~undo": word}).run()
    assert world.log[-2:] == ["a~undo", "a~undo.1"]
    assert world.call("a~undo.1").key == "s1/a/undo.1"
    assert world.state == "COMPENSATED"
    assert world.row("a")["compensation"]["uses"] == "un.2"


def test_rule_03_after_an_unknown_attempt_the_same_one_is_tried_until_max_attempts_then_parked() -> None:
    answers = {"b": "rejected", "a~undo": [("rejected", 2), ("rejected", 1)]}
    world = World(ALTERNATES, answers=answers).run()
    assert world.log.count("a~undo") == 2  # attempts 1 and 2, then attempt 3 of 3
    assert "a~undo.1" not in world.log
    assert world.call("a~undo").earlier_attempts == 2
    assert world.state == "PARKED"
    assert world.story["parked"][0]["op"] == "undo"


def test_rule_03_a_compensation_that_stays_unknown_parks() -> None:
    world = World(ALTERNATES, answers={"b": "rejected", "a~undo": "unknown"}).run()
    assert world.log.count("a~undo") == 1
    assert world.state == "PARKED"


def test_rule_03_infrastructure_is_never_given_up() -> None:
    answers = {"b": "rejected", "a~undo": ["infrastructure"] * 20 + ["done"]}
    world = World(ALTERNATES, answers=answers).run()
    assert world.state == "COMPENSATED"
    assert world.log.count("a~undo") == 21


def test_rule_03_branches_that_do_not_wait_for_the_parked_compensation_go_on_and_it_resumes_there() -> None:
    answers = {"z": "rejected", "l2~undo": ["rejected", "done"]}
    world = World(DIAMOND, answers=answers).run()
    assert world.undone == ["r2", "l2", "r1"]
    assert world.state == "PARKED"
    world.decide("l2", "retry")
    assert world.undone == ["r2", "l2", "r1", "l2", "l1", "a"]
    assert world.state == "COMPENSATED"


@pytest.mark.parametrize("word", ["rejected", "definition"])
def test_rule_03_a_confirm_parks_on_rejection_or_failed_without_retry(word: str) -> None:
    world = World(saga(step("a", confirm=op("ok", on="shop"))), answers={"a~confirm": word}).run()
    assert world.state == "PARKED"
    assert world.story["parked"][0]["op"] == "confirm"


@pytest.mark.parametrize("word", ["unknown", "failed", "infrastructure"])
def test_rule_03_any_other_end_of_a_confirm_is_repeated_without_limit(word: str) -> None:
    definition = saga(step("a", confirm=op("ok", on="shop")))
    world = World(definition, answers={"a~confirm": [word] * 30 + ["done"]}).run()
    assert world.state == "COMPLETED"
    assert world.log.count("a~confirm") == 31


@pytest.mark.parametrize("marker", ["unknown_effect", "confirmed"])
def test_an_undo_the_guard_cannot_perform_parks(marker: str) -> None:
    world = World(saga(step("a"), step("b")), answers={"b": "rejected", "a~undo": marker}).run()
    assert world.state == "PARKED"


def test_an_undo_that_finds_nothing_says_so() -> None:
    world = World(saga(step("a"), step("b")), answers={"b": "rejected", "a~undo": "nothing_to_undo"}).run()
    assert world.row("a")["state"] == "NOTHING_TO_UNDO"
    assert world.row("a")["outcome"] == "done"


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
def test_the_undo_is_decided_where_the_step_ran(
    step_on: str | None, undo_on: str | None, log: list[str], modes: list[str | None]
) -> None:
    definition = saga(step("a", on=step_on, compensate=undo("un.a", on=undo_on)), step("b"))
    world = World(definition, answers={"b": "rejected"}).run()
    calls = [call for call in world.calls if call.op == "undo"]
    assert [call.id for call in calls] == log
    assert [call.guard.mode if call.guard else None for call in calls] == modes
    assert world.state == "COMPENSATED"


@pytest.mark.parametrize(("marker", "state"), [("nothing_to_undo", "COMPENSATED"), ("confirmed", "PARKED")])
def test_what_the_mark_says_finally_is_final(marker: str, state: str) -> None:
    definition = saga(step("a", compensate=undo("un.a", on="bank")), step("b"))
    world = World(definition, answers={"b": "rejected", "a~undo-mark": marker}).run()
    assert "a~undo" not in world.log
    assert world.state == state
