"""The decisions an operator may take (the table in cli.md), and their effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
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
    assert [command.split()[4] for command in parked["commands"]] == offered
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


def test_other_arguments_after_an_unguarded_unknown_are_refused() -> None:
    driver = MachineDriver(OPEN_STEP, answers={"b": "unknown"}).run()
    assert "--with" in (driver.refusal("b", "retry", arguments={"x": 1}) or "")


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"no": "A-1"}, "--with does not fit: `sql` has no argument `no`; it takes connection, run, params"),
        ({"params": {}}, "--with does not fit: `sql` needs the argument `run`"),
        ({"run": "select 1"}, None),
        (
            {"run": "select :id", "params": {"id": "${{ saga.id }}"}},
            "--with takes values, and `${{ saga.id }}` would be text",
        ),
        ({"connection": "shop", "run": "select 1", "params": {}}, None),
        ({"run": 5}, "argument `run` of `sql`: expected a string or a mapping or a list, found 5"),
        ({"run": [{"params": {}}]}, "argument `run[0]` of `sql`: `sql` is missing"),
        ({"run": "select 1", "expect_rows": "1"}, "argument `expect_rows` of `sql`: expected a number of rows"),
        ({"run": "select 1", "rejected": "gone"}, "`rejected` has no effect without `expect_rows`"),
        ({"run": "select 1", "connection": "bank"}, "`connection` is what the definition says and cannot change"),
        ({"sql": "select 1"}, "`sql` has no argument `sql`; it takes connection, run, params"),
        (
            {"run": "update a set n = :x", "params": {"y": 1}},
            "--with does not fit: `run`: the statement has the placeholder `:x`, and no parameter of this name is",
        ),
        ({"run": "select :x"}, "add `x` to the parameters"),
        ({"run": "select :x", "params": {"x": 1}}, None),
        ({"run": {"sql": "select :x", "params": {"x": 1}}}, None),
        ({"run": {"sql": "select :x"}, "params": {"x": 1}}, None),
        ({"run": {"sql": "select :x", "params": {}}}, "`run.sql`: the statement has the placeholder `:x`"),
        ({"run": "select 1", "params": {"x": 1}}, "`run`: the parameter `x` is given, and the statement has no"),
        ({"run": [{"sql": "select 1"}, {"sql": "select :x"}]}, "`run[1].sql`: the statement has the placeholder `:x`"),
        ({"run": [{"sql": "select :x"}], "params": {"x": 1}}, "`params` next to a list of statements has no effect"),
        ({"run": "commit"}, "`run`: COMMIT is refused in a guarded step: it controls the transaction"),
        (
            {"run": "select 1; select 2"},
            "several statements in one string are refused; write a list of statements under `run`",
        ),
        # as only some databases read it
        ({"run": "select n::text from a where m = :m", "params": {"m": 1}}, None),
        ({"run": "select `a:n` from a where m = :m", "params": {"m": 1}}, None),
    ],
)
def test_arguments_of_a_built_in_action_must_fit(arguments: dict[str, Any], refusal: str | None) -> None:
    driver = parked_builtin("sql", {"connection": "shop", "run": "update stock set n = 1"}, on="shop")
    refused = driver.refusal("b", "retry", arguments=arguments)
    assert refused is None if refusal is None else refusal in (refused or "")


def parked_builtin(uses: str, with_: dict[str, Any], on: str | None = None) -> MachineDriver:
    """The step `b`, which uses a built-in action, is rejected and parked."""
    built_in = step("b", on_failure="park", on=on, do=op(uses, with_, on=on))
    return MachineDriver(saga(step("a"), built_in), answers={"b": ["rejected", "done"]}).run()


@pytest.mark.parametrize(
    ("uses", "original", "arguments", "refusal"),
    [
        ("act.b", {}, {"run": "select :x"}, None),
        (
            "spark",
            {"sql": "select 1", "output": {"table": "t"}},
            {"sql": "select :x as x", "output": {"table": "t"}},
            "`job.sql`: the statement has the placeholder `:x`",
        ),
        (
            "spark",
            {"sql": "select 1", "output": {"table": "t"}},
            {
                "sql": "select * from a",
                "inputs": {"a": {"connection": "shop", "query": "select 1", "params": {"x": 1}}},
                "output": {"table": "t"},
            },
            "`inputs.a.query`: the parameter `x` is given",
        ),
    ],
)
def test_statements_of_other_actions(
    uses: str, original: dict[str, Any], arguments: dict[str, Any], refusal: str | None
) -> None:
    refused = parked_builtin(uses, original, on="shop").refusal("b", "retry", arguments=arguments)
    assert refused is None if refusal is None else refusal in (refused or "")


def test_new_statements_of_a_read_only_read() -> None:
    read = step("b", kind="read", on_failure="park", compensate=None, do=op("sql", {"connection": "shop", "run": "x"}))
    driver = MachineDriver(saga(step("a"), read), answers={"b": "rejected"}).run()
    refused = driver.refusal("b", "retry", arguments={"run": "update a set n = 1"})
    assert refused == "--with does not fit: `run`: the step has `effect: none`, and UPDATE is a write"
    assert driver.refusal("b", "retry", arguments={"run": "select n from a"}) is None


HTTP = {"connection": "bank", "method": "POST", "path": "/charges", "json": {"amount": 5}}


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({}, "`http` needs the argument `path` or `url`"),
        ({"path": "/a", "url": "https://b.example"}, "`url` and `path` of `http` exclude each other"),
        ({"path": "/a", "json": 1}, "`json` has no effect: a GET request has no body"),
        ({"path": "/a", "method": "post"}, "expected one of GET, HEAD"),
        ({"path": "/a", "connection": "nowhere"}, "`connection` is what the definition says"),
    ],
)
def test_arguments_that_exclude_or_need_each_other_are_refused(arguments: dict[str, Any], refusal: str) -> None:
    assert refusal in (parked_builtin("http", HTTP).refusal("b", "retry", arguments=arguments) or "")


def test_new_arguments_keep_the_connection_and_take_the_form_that_the_action_reads() -> None:
    driver = parked_builtin("http", HTTP).decide("b", "retry", arguments={"path": "/a"})
    assert driver.call("b").arguments == {"connection": "bank", "path": "/a"}
    emitted = parked_builtin("outbox.emit", {"connection": "shop", "events": [{"topic": "t", "value": 1}]}, on="shop")
    emitted.decide("b", "retry", arguments={"topic": "u", "value": 2})
    assert emitted.call("b").arguments == {"connection": "shop", "events": [{"topic": "u", "value": 2}]}


def test_an_option_of_another_decision_is_refused() -> None:
    assert parked_builtin("http", HTTP).refusal("b", "skip", arguments=HTTP) == (
        "--with can only be used with `retry`, not with `skip`"
    )


def test_the_residue_names_the_arguments_of_the_definition_after_a_retry_with_others() -> None:
    first = step("a", on=None, compensate=undo(op("work", {"n": 1}), on=None))
    driver = MachineDriver(saga(first, step("b")), answers={"b": "rejected", "a~undo": "rejected"}).run()
    driver.decide("a", "retry", arguments={"n": 2}).decide("a", "skip")
    assert driver.calls[-1].arguments == {"n": 2}
    assert [row["command"] for row in driver.story["residue"]] == ['work {"n":1}']


def test_an_undo_that_is_rejected_again_after_a_retry_parks_at_once() -> None:
    """Every attempt was definitely without an effect, in the guard of the step too."""
    driver = MachineDriver(UNDO, answers={"c": "rejected", "b~undo": "rejected"}).run()
    assert driver.state == "PARKED"
    driver.decide("b", "retry")
    assert (driver.state, driver.log.count("b~undo"), driver.timers) == ("PARKED", 2, {})


def _with(operation: str, arguments: dict[str, Any]) -> Definition:
    """A saga whose `a` is called with ``arguments`` in this operation."""
    written = op("work", arguments)
    if operation == "do":
        return saga(step("a", do=written, on_failure="park"), step("b"))
    if operation == "undo":
        return saga(step("a", on=None, compensate=undo(written, on=None)), step("b"))
    return saga(step("a", confirm=written))


@pytest.mark.parametrize(
    ("operation", "answers"),
    [
        ("do", {"a": "rejected"}),
        ("undo", {"b": "rejected", "a~undo": "rejected"}),
        ("confirm", {"a~confirm": "rejected"}),
    ],
)
def test_a_corrected_definition_withdraws_the_arguments_of_an_earlier_retry(
    operation: str, answers: dict[str, Any]
) -> None:
    driver = MachineDriver(_with(operation, {"n": 1}), answers=answers).run()
    driver.decide("a", "retry", arguments={"n": 2})
    assert driver.calls[-1].arguments == {"n": 2}
    driver.decide("a", "retry")
    assert driver.calls[-1].arguments == {"n": 2}
    corrected = replace(_with(operation, {"n": 3}), digest="sha256:3")
    driver.decide("a", "retry", definition=to_snapshot(corrected))
    assert driver.calls[-1].arguments == {"n": 3}
    assert [row.get("definition") for row in driver.story["operator"]] == [None, None, "sha256:3"]


@pytest.mark.parametrize(
    ("on", "log", "sent"), [("shop", ["a", "a~seal", "a"], {"n": 3}), (None, ["a", "a"], {"n": 1})]
)
def test_a_corrected_definition_applies_after_an_unknown_attempt_with_a_guard_only(
    on: str | None, log: list[str], sent: dict[str, Any]
) -> None:
    definitions = [saga(step("a", on=on, do=op("work", {"n": n}, on=on), on_failure="park")) for n in (1, 3)]
    driver = MachineDriver(definitions[0], answers={"a": "unknown"}).run()
    driver.decide("a", "retry", definition=to_snapshot(definitions[1]))
    assert (driver.log, driver.calls[-1].arguments) == (log, sent)


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
    assert [row["kind"] for row in driver.story["residue"]] == ["effect_stays"]


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
