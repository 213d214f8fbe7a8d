"""The arguments that an operator gives to a retry, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo

OPEN_STEP = saga(step("a"), step("b", on=None, on_failure="park"), step("c"))


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
            "with takes values, and `${{ saga.id }}` would be text",
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
        "with can only be used with `retry`, not with `skip`"
    )


def test_the_residue_names_the_arguments_of_the_definition_after_a_retry_with_others() -> None:
    first = step("a", on=None, compensate=undo(op("work", {"n": 1}), on=None))
    driver = MachineDriver(saga(first, step("b")), answers={"b": "rejected", "a~undo": "rejected"}).run()
    driver.decide("a", "retry", arguments={"n": 2}).decide("a", "skip")
    assert driver.calls[-1].arguments == {"n": 2}
    assert [row["command"] for row in driver.story["residue"]] == ['work {"n":1}']


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
