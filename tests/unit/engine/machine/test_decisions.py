"""What a person may decide (the table in cli.md), and what the engine does with it."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Definition
from tests.unit.engine.machine.driver import World, op, probe, saga, step, undo

STEP = saga(step("a"), step("b", on_failure="park"), step("c"))
OPEN_STEP = saga(step("a"), step("b", on=None, on_failure="park"), step("c"))
PIVOT = saga(step("a"), step("p", kind="pivot", on_failure="park"))
OPEN_PIVOT = saga(step("a"), step("p", kind="pivot", on=None))
AFTER = saga(step("p", kind="pivot"), step("n", kind="retriable"), step("m", kind="retriable"))
CONFIRM = saga(step("a", confirm=op("ok", on="shop")))
UNDO = saga(step("a"), step("b"), step("c"))

# --- what is offered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "answers", "entry", "offered"),
    [
        (STEP, {"b": "rejected"}, "b", ["retry", "done", "skip", "compensate"]),
        (PIVOT, {"p": "unknown"}, "p", ["retry", "done", "compensate"]),
        (AFTER, {"n": "rejected"}, "n", ["retry", "done", "skip"]),
        (CONFIRM, {"a~confirm": "rejected"}, "a", ["retry", "done", "skip"]),
        (UNDO, {"c": "rejected", "b~undo": "rejected"}, "b", ["retry", "done", "skip"]),
    ],
)
def test_the_table(definition: Definition, answers: dict[str, Any], entry: str, offered: list[str]) -> None:
    world = World(definition, answers=answers).run()
    parked = world.story["parked"][0]
    assert parked["decisions"] == offered
    assert [command.split()[4] for command in parked["commands"]] == offered
    for decision in ("retry", "done", "skip", "compensate"):
        refusal = world.refusal(entry, decision, evidence="seen in the bank's books")
        assert (refusal is None) == (decision in offered)


@pytest.mark.parametrize(
    ("definition", "answers", "entry", "decision"),
    [
        (UNDO, {"c": "rejected", "b~undo": "rejected"}, "b", "done"),
        (PIVOT, {"p": "unknown"}, "p", "done"),
        (OPEN_PIVOT, {"p": "unknown"}, "p", "compensate"),
    ],
)
def test_some_need_evidence(definition: Definition, answers: dict[str, Any], entry: str, decision: str) -> None:
    world = World(definition, answers=answers).run()
    assert "evidence" in (world.refusal(entry, decision) or "")
    assert world.refusal(entry, decision, evidence="a receipt") is None


def test_an_unknown_step_gets_did_you_mean() -> None:
    world = World(saga(step("reserve", on_failure="park")), answers={"reserve": "rejected"}).run()
    assert "did you mean reserve?" in (world.refusal("resrve", "retry") or "")


def test_only_parked_steps_and_those_retried_for_over_15_minutes() -> None:
    world = World(AFTER, answers={"n": "unknown"}).run(until=14 * 60)
    assert "15 minutes" in (world.refusal("n", "skip") or "")
    world.run(until=16 * 60)
    assert world.refusal("n", "skip") is None
    assert "DONE" in (world.refusal("p", "skip") or "")


def test_a_first_attempt_within_its_timeout_is_not_being_retried() -> None:
    slow = saga(step("p", kind="pivot"), step("n", kind="retriable", timeout=7200.0))
    world = World(slow, hold=["n"]).start().wait(3600)
    assert world.refusal("n", "done") is not None


def test_the_first_decision_wins() -> None:
    world = World(AFTER, hold=["n"]).start().wait(3600).decide("n", "skip")
    assert world.cancelled == ["n"]
    assert "kim has already decided" in (world.refusal("n", "retry") or "")


def test_an_attempt_in_flight_that_succeeds_wins_over_the_decision() -> None:
    world = World(AFTER, hold=["n"]).start().wait(3600).decide("n", "skip").end("n", "done")
    assert world.state == "COMPLETED"
    assert world.row("n")["state"] == "DONE"


def test_nothing_can_be_decided_about_a_finished_saga() -> None:
    assert "is over" in (World(STEP).run().refusal("b", "retry") or "")


def test_every_decision_is_audited() -> None:
    world = World(STEP, answers={"b": ["rejected", "done"]}).run()
    world.decide("b", "retry", reason="stock came in")
    assert len(world.story["operator"]) == 1
    row = world.story["operator"][0]
    assert (row["who"], row["step"], row["decision"], row["reason"]) == ("kim", "b", "retry", "stock came in")


# --- a step before the commit point ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "words", "more", "log", "generation"),
    [
        # rejected or failed: the old key is sealed, the next generation runs
        (STEP, ["rejected", "done"], {}, ["b", "b~seal", "b", "c"], 2),
        (STEP, [("failed", 1), "done"], {}, ["b", "b~seal", "b", "c"], 2),
        (OPEN_STEP, ["rejected", "done"], {}, ["b", "b", "c"], 2),
        # unknown: the same key
        (STEP, ["unknown", "done"], {}, ["b", "b", "c"], 1),
        (OPEN_STEP, ["unknown", "done"], {}, ["b", "b", "c"], 1),
        # unknown, with other arguments: sealed first
        (STEP, ["unknown", "done"], {"arguments": {"x": 1}}, ["b", "b~seal", "b", "c"], 2),
    ],
)
def test_retry(definition: Definition, words: list[Any], more: dict[str, Any], log: list[str], generation: int) -> None:
    world = World(definition, answers={"b": words}).run()
    assert world.state == "PARKED"
    world.decide("b", "retry", **more)
    assert world.log[1:] == log
    assert world.row("b")["generation"] == generation
    assert world.call("b").generation == generation
    assert world.call("b").arguments == more.get("arguments", {})
    assert world.state == "COMPLETED"


def test_retry_whose_seal_loses_is_done() -> None:
    world = World(STEP, answers={"b": ["unknown"], "b~seal": "done"}).run()
    world.decide("b", "retry", arguments={"x": 1})
    assert world.log[1:] == ["b", "b~seal", "c"]
    assert world.state == "COMPLETED"


def test_other_arguments_after_an_unguarded_unknown_are_refused() -> None:
    world = World(OPEN_STEP, answers={"b": "unknown"}).run()
    assert "--with" in (world.refusal("b", "retry", arguments={"x": 1}) or "")


@pytest.mark.parametrize(("definition", "log"), [(STEP, ["b", "b~write", "c"]), (OPEN_STEP, ["b", "c"])])
def test_done_takes_the_persons_result_through_the_guard(definition: Definition, log: list[str]) -> None:
    from sagas.protocol.outcomes import Outcome

    world = World(definition, answers={"b": "unknown", "b~write": Outcome.done({"n": 1})}).run()
    world.decide("b", "done", result={"n": 1})
    assert world.log[1:] == log
    assert world.row("b")["result"] == {"n": 1}
    assert world.state == "COMPLETED"
    if definition is STEP:
        write = world.call("b~write")
        assert (write.action, write.op, write.key, write.arguments) == ("saga.done", "do", "s1/b", {"result": {"n": 1}})


def test_done_when_the_row_says_otherwise_the_row_wins() -> None:
    world = World(STEP, answers={"b": "unknown", "b~write": "late"}).run()
    world.decide("b", "done", result=1)
    assert world.state == "PARKED"
    assert "the guard did not take the decision" in world.story["parked"][0]["why"]


@pytest.mark.parametrize(
    ("definition", "answers", "log", "state"),
    [
        (STEP, {"b": "unknown"}, ["b", "b~seal", "c"], "SKIPPED"),
        (STEP, {"b": "unknown", "b~seal": "done"}, ["b", "b~seal", "c"], "DONE"),
        (OPEN_STEP, {"b": "rejected"}, ["b", "c"], "SKIPPED"),
    ],
)
def test_skip_is_sealed_then_skipped(
    definition: Definition, answers: dict[str, Any], log: list[str], state: str
) -> None:
    world = World(definition, answers=answers).run().decide("b", "skip")
    assert world.log[1:] == log
    assert world.row("b")["state"] == state
    assert world.state == "COMPLETED"


def test_an_unguarded_unknown_step_that_was_skipped_is_still_undone_when_the_saga_goes_backward() -> None:
    world = World(OPEN_STEP, answers={"b": "unknown", "c": "rejected"}).run().decide("b", "skip")
    assert world.undone == ["b", "a"]


def test_compensate_goes_backward() -> None:
    world = World(STEP, answers={"b": "rejected"}).run().decide("b", "compensate", reason="give up")
    assert world.undone == ["a"]
    assert world.story["reason"]["kind"] == "operator"
    assert world.story["reason"]["message"] == "give up"


# --- the pivot -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seal", "state"), [("sealed", "COMPENSATED"), ("done", "COMPLETED"), ("late", "COMPENSATED")])
def test_pivot_compensate_goes_backward_if_the_seal_wins(seal: str, state: str) -> None:
    world = World(PIVOT, answers={"p": "unknown", "p~seal": seal}).run().decide("p", "compensate")
    assert world.state == state


def test_unguarded_pivot_a_person_decides_with_evidence() -> None:
    world = World(OPEN_PIVOT, answers={"p": "unknown"}).run().decide("p", "compensate", evidence="not in the books")
    assert world.state == "COMPENSATED"
    assert world.story["reason"]["kind"] == "operator"
    world = World(OPEN_PIVOT, answers={"p": "unknown"}).run().decide("p", "done", evidence="in the books")
    assert world.state == "COMPLETED"
    world = World(OPEN_PIVOT, answers={"p": ["unknown", "done"]}).run().decide("p", "retry")
    assert world.call("p").generation == 1
    assert world.state == "COMPLETED"


# --- past the commit point -------------------------------------------------------------------------------------------


def test_after_the_commit_point_skip_leaves_a_residue_that_names_the_missing_effect() -> None:
    world = World(AFTER, answers={"n": "rejected"}).run().decide("n", "skip")
    assert world.log == ["p", "n", "n~seal", "m"]
    assert world.state == "RESIDUE"
    assert world.finishes[0].committed
    assert world.story["residue"] == [
        {"step": "n", "kind": "effect_missing", "system": "shop", "key": "s1/n", "command": "act.n {}"}
    ]


def test_after_the_commit_point_retry_and_done() -> None:
    world = World(AFTER, answers={"n": ["rejected", "done"]}).run().decide("n", "retry")
    assert world.row("n")["generation"] == 2
    assert world.state == "COMPLETED"
    world = World(AFTER, answers={"n": "rejected"}).run().decide("n", "done", result=1)
    assert world.state == "COMPLETED"


@pytest.mark.parametrize(
    ("decision", "state", "confirmation"),
    [("retry", "COMPLETED", "DONE"), ("done", "COMPLETED", "DONE"), ("skip", "RESIDUE", "SKIPPED")],
)
def test_confirm(decision: str, state: str, confirmation: str) -> None:
    world = World(CONFIRM, answers={"a~confirm": ["rejected", "done"]}).run().decide("a", decision)
    assert world.state == state
    assert world.row("a")["confirmation"]["state"] == confirmation


# --- a compensation --------------------------------------------------------------------------------------------------


def test_undo_retry_done_and_skip() -> None:
    answers = {"c": "rejected", "b~undo": ["rejected", "done"]}
    world = World(UNDO, answers=answers).run().decide("b", "retry")
    assert world.log[-2:] == ["b~undo", "a~undo"]
    assert world.state == "COMPENSATED"

    world = World(UNDO, answers=answers).run().decide("b", "done", evidence="receipt 7")
    assert world.call("b~write").op == "undo"
    assert world.call("b~write").key == "s1/b/undo"
    assert world.row("b")["state"] == "COMPENSATED"
    assert world.state == "COMPENSATED"

    world = World(UNDO, answers=answers).run().decide("b", "skip")
    assert world.undone[-1] == "a"
    assert world.state == "RESIDUE"
    assert not world.finishes[0].committed
    assert world.row("b")["state"] == "DONE"
    assert world.row("b")["compensation"]["state"] == "SKIPPED"
    assert [row["kind"] for row in world.story["residue"]] == ["effect_stays"]


def test_an_unguarded_undo_is_done_on_a_persons_word() -> None:
    definition = saga(step("a", on=None, compensate=undo("u", on=None)), step("b"))
    world = World(definition, answers={"b": "rejected", "a~undo": "rejected"}).run()
    world.decide("a", "done", evidence="receipt")
    assert world.state == "COMPENSATED"


# --- PARKED ----------------------------------------------------------------------------------------------------------


def test_the_saga_is_parked_only_when_nothing_else_can_run() -> None:
    definition = saga(step("l", on_failure="park"), step("r"), line=False)
    world = World(definition, answers={"l": "rejected"}, hold=["r"]).start()
    assert world.state == "RUNNING"
    assert [parked["step"] for parked in world.story["parked"]] == ["l"]
    world.end("r")
    assert world.state == "PARKED"
    assert [record.state for record in world.records] == ["PARKED"]
    world.decide("l", "skip")
    assert world.state == "COMPLETED"


@pytest.mark.parametrize("decision", ["retry", "skip", "done", "compensate"])
def test_decisions_survive_a_restore_at_every_point(decision: str) -> None:
    answers = {"b": ["rejected", "done"]}
    plain = World(STEP, answers=answers).run().decide("b", decision)
    restored = World(STEP, answers=answers, restore=True).run().decide("b", decision)
    assert restored.story == plain.story
    assert restored.log == plain.log


def test_a_guard_in_trouble_is_asked_again_to_take_the_decision() -> None:
    answers = {"b": "unknown", "b~write": ["infrastructure", "unknown", "done"]}
    world = World(STEP, answers=answers).run().decide("b", "done", result=1).run()
    assert world.log.count("b~write") == 3
    assert world.state == "COMPLETED"


def test_a_step_that_is_not_idempotent_is_not_repeated_by_a_person_either() -> None:
    keyless = step("b", on=None, idempotent=False, on_failure="park")
    world = World(saga(step("a"), keyless), answers={"b": "unknown"}).run()
    assert "must not be asked twice" in (world.refusal("b", "retry") or "")


def test_with_a_probe_a_persons_retry_asks_the_probe_first() -> None:
    keyless = step("b", on=None, idempotent=False, on_failure="park", probe=probe(seals=True))
    answers = {"b": ["unknown", "done"], "b~probe": ["unsure", "unsure", "unsure", "absent"]}
    world = World(saga(step("a"), keyless), answers=answers).run()
    assert world.state == "PARKED"
    world.decide("b", "retry").run()
    assert world.log[-2:] == ["b~probe", "b"]
    assert world.state == "COMPLETED"
