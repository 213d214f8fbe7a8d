"""The decisions an operator may take (the table in cli.md), and their effect."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Definition
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step, undo

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
def test_the_decision_table(definition: Definition, answers: dict[str, Any], entry: str, offered: list[str]) -> None:
    driver = MachineDriver(definition, answers=answers).run()
    parked = driver.story["parked"][0]
    assert parked["decisions"] == offered
    # A rejection answers the arguments: the same ones may be refused for ever.
    assert ("--with" in parked["commands"][0]) == ("rejected" in answers.values())
    plain = [command for command in parked["commands"] if "--with" not in command]
    assert [command.split()[4] for command in plain] == offered
    for decision in ("retry", "done", "skip", "compensate"):
        refusal = driver.refusal(entry, decision, evidence="seen in the bank's books")
        assert (refusal is None) == (decision in offered)


@pytest.mark.parametrize(
    ("definition", "answers", "entry", "decision"),
    [
        (UNDO, {"c": "rejected", "b~undo": "rejected"}, "b", "done"),
        (PIVOT, {"p": "unknown"}, "p", "done"),
        (OPEN_PIVOT, {"p": "unknown"}, "p", "compensate"),
    ],
)
def test_some_decisions_need_evidence(
    definition: Definition, answers: dict[str, Any], entry: str, decision: str
) -> None:
    driver = MachineDriver(definition, answers=answers).run()
    assert "evidence" in (driver.refusal(entry, decision) or "")
    assert driver.refusal(entry, decision, evidence="a receipt") is None


def test_an_unknown_step_gets_did_you_mean() -> None:
    driver = MachineDriver(saga(step("reserve", on_failure="park")), answers={"reserve": "rejected"}).run()
    assert "did you mean reserve?" in (driver.refusal("resrve", "retry") or "")


def test_only_parked_steps_and_those_retried_for_over_15_minutes() -> None:
    driver = MachineDriver(AFTER, answers={"n": "unknown"}).run(until=14 * 60)
    assert "15 minutes" in (driver.refusal("n", "skip") or "")
    driver.run(until=16 * 60)
    assert driver.refusal("n", "skip") is None
    assert "DONE" in (driver.refusal("p", "skip") or "")


def test_a_first_attempt_within_its_timeout_is_not_being_retried() -> None:
    slow = saga(step("p", kind="pivot"), step("n", kind="retriable", timeout=7200.0))
    driver = MachineDriver(slow, hold=["n"]).start().wait(3600)
    assert driver.refusal("n", "done") is not None


def test_the_first_decision_wins() -> None:
    driver = MachineDriver(AFTER, hold=["n"]).start().wait(3600).decide("n", "skip")
    assert driver.cancelled == ["n"]
    assert "kim has already decided" in (driver.refusal("n", "retry") or "")


def test_an_attempt_in_flight_that_succeeds_wins_over_the_decision() -> None:
    driver = MachineDriver(AFTER, hold=["n"]).start().wait(3600).decide("n", "skip").end("n", "done")
    assert driver.state == "COMPLETED"
    assert driver.row("n")["state"] == "DONE"


def test_nothing_can_be_decided_about_a_finished_saga() -> None:
    assert "has ended" in (MachineDriver(STEP).run().refusal("b", "retry") or "")


def test_every_decision_is_audited() -> None:
    driver = MachineDriver(STEP, answers={"b": ["rejected", "done"]}).run()
    driver.decide("b", "retry", reason="stock came in")
    assert len(driver.story["operator"]) == 1
    row = driver.story["operator"][0]
    assert (row["who"], row["step"], row["decision"], row["reason"]) == ("kim", "b", "retry", "stock came in")


# --- a step before the commit point ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "outcomes", "more", "log", "generation"),
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
def test_retry(
    definition: Definition, outcomes: list[Any], more: dict[str, Any], log: list[str], generation: int
) -> None:
    driver = MachineDriver(definition, answers={"b": outcomes}).run()
    assert driver.state == "PARKED"
    driver.decide("b", "retry", **more)
    assert driver.log[1:] == log
    assert driver.row("b")["generation"] == generation
    assert driver.call("b").generation == generation
    assert driver.call("b").arguments == more.get("arguments", {})
    assert driver.state == "COMPLETED"


def test_retry_whose_seal_loses_is_done() -> None:
    driver = MachineDriver(STEP, answers={"b": ["unknown"], "b~seal": "done"}).run()
    driver.decide("b", "retry", arguments={"x": 1})
    assert driver.log[1:] == ["b", "b~seal", "c"]
    assert driver.state == "COMPLETED"


def test_an_undo_that_is_rejected_again_after_a_retry_parks_at_once() -> None:
    """Every attempt was definitely without an effect, in the guard of the step too."""
    driver = MachineDriver(UNDO, answers={"c": "rejected", "b~undo": "rejected"}).run()
    assert driver.state == "PARKED"
    driver.decide("b", "retry")
    assert (driver.state, driver.log.count("b~undo"), driver.timers) == ("PARKED", 2, {})


@pytest.mark.parametrize(("definition", "log"), [(STEP, ["b", "b~write", "c"]), (OPEN_STEP, ["b", "c"])])
def test_done_records_the_operator_result_in_the_guard(definition: Definition, log: list[str]) -> None:
    from sagas.protocol.outcomes import Outcome

    driver = MachineDriver(definition, answers={"b": "unknown", "b~write": Outcome.done({"n": 1})}).run()
    driver.decide("b", "done", result={"n": 1})
    assert driver.log[1:] == log
    assert driver.row("b")["result"] == {"n": 1}
    assert driver.state == "COMPLETED"
    if definition is STEP:
        write = driver.call("b~write")
        assert (write.action, write.op, write.key, write.arguments) == ("saga.done", "do", "s1/b", {"result": {"n": 1}})


def test_the_guard_row_wins_over_done() -> None:
    driver = MachineDriver(STEP, answers={"b": "unknown", "b~write": "late"}).run()
    driver.decide("b", "done", result=1)
    assert driver.state == "PARKED"
    assert "the guard refused the decision" in driver.story["parked"][0]["why"]


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
    driver = MachineDriver(definition, answers=answers).run().decide("b", "skip")
    assert driver.log[1:] == log
    assert driver.row("b")["state"] == state
    assert driver.state == "COMPLETED"


def test_an_unguarded_unknown_step_that_was_skipped_is_still_undone_when_the_saga_goes_backward() -> None:
    driver = MachineDriver(OPEN_STEP, answers={"b": "unknown", "c": "rejected"}).run().decide("b", "skip")
    assert driver.undone == ["b", "a"]


def test_compensate_goes_backward() -> None:
    driver = MachineDriver(STEP, answers={"b": "rejected"}).run().decide("b", "compensate", reason="give up")
    assert driver.undone == ["a"]
    assert driver.story["reason"]["kind"] == "operator"
    assert driver.story["reason"]["message"] == "give up"


# --- the pivot -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seal", "state"), [("sealed", "COMPENSATED"), ("done", "COMPLETED"), ("late", "COMPENSATED")])
def test_pivot_compensate_goes_backward_if_the_seal_wins(seal: str, state: str) -> None:
    driver = MachineDriver(PIVOT, answers={"p": "unknown", "p~seal": seal}).run().decide("p", "compensate")
    assert driver.state == state


def test_an_unguarded_pivot_is_decided_with_evidence() -> None:
    driver = (
        MachineDriver(OPEN_PIVOT, answers={"p": "unknown"}).run().decide("p", "compensate", evidence="not in the books")
    )
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["kind"] == "operator"
    driver = MachineDriver(OPEN_PIVOT, answers={"p": "unknown"}).run().decide("p", "done", evidence="in the books")
    assert driver.state == "COMPLETED"
    driver = MachineDriver(OPEN_PIVOT, answers={"p": ["unknown", "done"]}).run().decide("p", "retry")
    assert driver.call("p").generation == 1
    assert driver.state == "COMPLETED"


# --- past the commit point -------------------------------------------------------------------------------------------


def test_after_the_commit_point_skip_leaves_a_residue_that_names_the_missing_effect() -> None:
    driver = MachineDriver(AFTER, answers={"n": "rejected"}).run().decide("n", "skip")
    assert driver.log == ["p", "n", "n~seal", "m"]
    assert driver.state == "RESIDUE"
    assert driver.finishes[0].committed
    assert driver.story["residue"] == [
        {"step": "n", "kind": "effect_missing", "system": "shop", "key": "s1/n", "command": "act.n {}"}
    ]


def test_a_skipped_effect_that_may_be_there_is_not_called_missing() -> None:
    after = saga(step("p", kind="pivot"), step("n", kind="retriable", on=None))
    driver = MachineDriver(after, answers={"n": ["unknown", "rejected"]}).run().decide("n", "skip")
    assert (driver.state, [row["kind"] for row in driver.story["residue"]]) == ("RESIDUE", ["effect_unclear"])


def test_after_the_commit_point_retry_and_done() -> None:
    driver = MachineDriver(AFTER, answers={"n": ["rejected", "done"]}).run().decide("n", "retry")
    assert driver.row("n")["generation"] == 2
    assert driver.state == "COMPLETED"
    driver = MachineDriver(AFTER, answers={"n": "rejected"}).run().decide("n", "done", result=1)
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize(
    ("decision", "state", "confirmation"),
    [("retry", "COMPLETED", "DONE"), ("done", "COMPLETED", "DONE"), ("skip", "RESIDUE", "SKIPPED")],
)
def test_confirm(decision: str, state: str, confirmation: str) -> None:
    driver = MachineDriver(CONFIRM, answers={"a~confirm": ["rejected", "done"]}).run().decide("a", decision)
    assert driver.state == state
    assert driver.row("a")["confirmation"]["state"] == confirmation


# --- a compensation --------------------------------------------------------------------------------------------------


def test_undo_retry_done_and_skip() -> None:
    answers = {"c": "rejected", "b~undo": ["rejected", "done"]}
    driver = MachineDriver(UNDO, answers=answers).run().decide("b", "retry")
    assert driver.log[-2:] == ["b~undo", "a~undo"]
    assert driver.state == "COMPENSATED"

    driver = MachineDriver(UNDO, answers=answers).run().decide("b", "done", evidence="receipt 7")
    assert driver.call("b~write").op == "undo"
    assert driver.call("b~write").key == "s1/b/undo"
    assert driver.row("b")["state"] == "COMPENSATED"
    assert driver.state == "COMPENSATED"

    driver = MachineDriver(UNDO, answers=answers).run().decide("b", "skip")
    assert driver.undone[-1] == "a"
    assert driver.state == "RESIDUE"
    assert not driver.finishes[0].committed
    assert driver.row("b")["state"] == "DONE"
    assert driver.row("b")["compensation"]["state"] == "SKIPPED"
    (residue_item,) = driver.story["residue"]
    assert (residue_item["kind"], residue_item["system"], residue_item["key"]) == ("effect_stays", "shop", "s1/b")


def test_the_effect_of_a_skipped_undo_is_where_the_forward_call_has_put_it() -> None:
    transfer = op("http", {"connection": "bank", "method": "POST", "path": "/transfers"})
    cancel = op("http", {"connection": "desk", "method": "POST", "path": "/cancel"})
    definition = saga(step("transfer", do=transfer, compensate=undo(cancel)), step("b"))
    driver = MachineDriver(definition, answers={"b": "rejected", "transfer~undo": "rejected"}).run()
    (residue_item,) = driver.decide("transfer", "skip").story["residue"]
    assert (residue_item["system"], residue_item["key"]) == ("bank", "s1/transfer")
    assert residue_item["command"] == 'http {"connection":"desk","method":"POST","path":"/cancel"}'


def test_an_unguarded_undo_can_be_declared_done() -> None:
    definition = saga(step("a", on=None, compensate=undo("u", on=None)), step("b"))
    driver = MachineDriver(definition, answers={"b": "rejected", "a~undo": "rejected"}).run()
    driver.decide("a", "done", evidence="receipt")
    assert driver.state == "COMPENSATED"


# --- PARKED ----------------------------------------------------------------------------------------------------------


def test_the_saga_is_parked_only_when_nothing_else_can_run() -> None:
    definition = saga(step("l", on_failure="park"), step("r"), line=False)
    driver = MachineDriver(definition, answers={"l": "rejected"}, hold=["r"]).start()
    assert driver.state == "RUNNING"
    assert [parked["step"] for parked in driver.story["parked"]] == ["l"]
    driver.end("r")
    assert driver.state == "PARKED"
    assert [record.state for record in driver.records] == ["PARKED"]
    driver.decide("l", "skip")
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize("decision", ["retry", "skip", "done", "compensate"])
def test_decisions_survive_a_restore_at_every_point(decision: str) -> None:
    answers = {"b": ["rejected", "done"]}
    plain = MachineDriver(STEP, answers=answers).run().decide("b", decision)
    restored = MachineDriver(STEP, answers=answers, restore=True).run().decide("b", decision)
    assert restored.story == plain.story
    assert restored.log == plain.log


def test_a_failing_guard_is_retried_with_the_decision() -> None:
    answers = {"b": "unknown", "b~write": ["infrastructure", "unknown", "done"]}
    driver = MachineDriver(STEP, answers=answers).run().decide("b", "done", result=1).run()
    assert driver.log.count("b~write") == 3
    assert driver.state == "COMPLETED"


def test_a_non_idempotent_step_cannot_be_retried_by_an_operator() -> None:
    keyless = step("b", on=None, idempotent=False, on_failure="park")
    driver = MachineDriver(saga(step("a"), keyless), answers={"b": "unknown"}).run()
    assert "must not be called twice" in (driver.refusal("b", "retry") or "")


def test_with_a_probe_a_manual_retry_probes_first() -> None:
    keyless = step("b", on=None, idempotent=False, on_failure="park", probe=probe(seals=True))
    answers = {"b": ["unknown", "done"], "b~probe": ["unsure", "unsure", "unsure", "absent"]}
    driver = MachineDriver(saga(step("a"), keyless), answers=answers).run()
    assert driver.state == "PARKED"
    driver.decide("b", "retry").run()
    assert driver.log[-2:] == ["b~probe", "b"]
    assert driver.state == "COMPLETED"


def test_a_decision_keeps_why_the_step_was_parked() -> None:
    driver = MachineDriver(STEP, answers={"b": "rejected"}).run()
    why = driver.story["parked"][0]["why"]
    driver.decide("b", "done").run()
    assert driver.story["parked"] == []
    assert [(row["decision"], row["error"]) for row in driver.story["operator"]] == [("done", why)]


def test_what_is_kept_of_a_long_error_is_short() -> None:
    """Each of many retries would keep it once more."""
    driver = MachineDriver(STEP, answers={"b": "rejected"}).run()
    driver.machine._run.parked["b"].why = f"the bank says {'no ' * 3_000}; call it"
    driver.decide("b", "done")
    [row] = driver.story["operator"]
    assert len(row["error"]) <= 1_000
    assert row["error"].startswith("the bank says no")
    assert row["error"].endswith("; call it")
