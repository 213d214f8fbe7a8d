"""Calls of sagas that were started with an earlier version, compared with the actions of this one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from saga_workers.deploy.call_problems import call_problem
from sagas import Step, action
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions
from sagas.definition.model import Operation
from sagas.machine.remaining_calls import RemainingCall
from sagas.project import Project
from sagas.settings import load_settings
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo

PAY = Operation("pay", connection="shop")


@action("pay", connection="shop")
async def pay(step: Step, amount: int, note: str = "") -> None: ...


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "saga.toml").write_text(
        '[connections.shop]\nurl = "sqlite:///shop.db"\n[connections.bank]\nurl = "sqlite:///bank.db"\n'
        '[connections.crm]\nkind = "http"\nurl = "http://crm"\n[catalogs.lake]\n'
    )
    settings = load_settings(config=str(tmp_path / "saga.toml"))
    return Project(settings, Actions([getattr(pay, ACTION_ATTRIBUTE)]))


@pytest.mark.parametrize(
    ("operation", "arguments", "problem"),
    [
        (Operation("pay", connection="shop"), {"amount": 3}, None),
        (Operation("pay", connection="shop"), {"amount": "${{ input.amount }}", "note": "x"}, None),
        (Operation("pay", connection="shop"), {"amount": "3"}, "the action pay does not take the argument amount is"),
        (Operation("pay", connection="shop"), {"sum": 3}, "the action pay takes no argument sum"),
        (Operation("pay", connection="shop"), {}, "the action pay needs the argument amount, which these sagas"),
        (Operation("pay", connection="bank"), {"amount": 3}, "the action pay runs on shop, and these sagas have its"),
        (Operation("pay"), {"amount": 3}, "the action pay runs on shop, and these sagas have its guard rows on no"),
        (Operation("refund"), {}, "there is no action refund"),
        (Operation("refund", task_queue="elsewhere", local=False), {}, None),
        (Operation("sql", connection="shop"), {"run": "select 1"}, None),
        (Operation("sql", connection="gone"), {"run": "select 1"}, "the connection gone is not in saga.toml"),
        (Operation("sql", connection="crm"), {"run": "select 1"}, "the connection crm is not of the kind sql any more"),
        (Operation("http"), {"connection": "crm", "path": "/"}, None),
        (Operation("http"), {"connection": "${{ input.service }}", "path": "/"}, None),
        (Operation("http"), {"connection": "gone", "path": "/"}, "the connection gone is not in saga.toml"),
        (
            Operation("http"),
            {"connection": "shop", "path": "/"},
            "the connection shop is not of the kind http any more",
        ),
        (Operation("http"), {"url": "http://crm", "callback": {"timeout": "1h"}}, "its callback needs an address"),
        (Operation("kafka.request"), {"topic": "orders"}, "it needs a database for its commands"),
        (Operation("spark", connection="shop"), {"output": {"table": "lake.sales.facts"}}, None),
        (Operation("spark", connection="shop"), {"output": {"connection": "shop", "table": "facts"}}, None),
        (Operation("spark.publish", connection="shop"), {"outputs": {"a": {"table": "sea.a.b"}}}, "the catalog sea is"),
        (Operation("spark.revert", connection="gone"), {"output": {"parquet": "/facts"}}, "the connection gone is not"),
        (
            Operation("spark", connection="shop"),
            {"inputs": {"a": {"connection": "gone", "table": "b"}}, "output": {}},
            "the connection gone is not",
        ),
        (Operation("reconcile"), {"left": {"table": "sea.a.b"}, "right": {"step": "a"}}, "the catalog sea is not"),
        (Operation("sql.restore", connection="shop"), {}, None),
        (Operation("wait"), {"signal": "go"}, None),
    ],
)
def test_a_call_and_the_registered_action(
    project: Project, operation: Operation, arguments: Mapping[str, Any], problem: str | None
) -> None:
    told = call_problem(project, RemainingCall("pay", "do", operation, arguments))
    assert told == problem or (told is not None and problem is not None and told.startswith(problem))


def test_arguments_of_an_operator_are_compared_with_their_values(project: Project) -> None:
    saga_of_one_step = saga(
        step(
            "a", do=op("pay", {"amount": 1}, on="shop"), compensate=undo(op("pay", None, on="shop")), on_failure="park"
        )
    )
    driver = MachineDriver(saga_of_one_step, {}, {"a": ["rejected", "done"]}).run()
    driver.decide("a", "retry", arguments={"amount": 2, "extra": "secret"}).run()
    assert driver.state == "COMPLETED"
    problems = {call_problem(project, call) for call in driver.machine.remaining_calls()}
    assert problems == {None, "the action pay takes no argument extra"}


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (RemainingCall("a", "compensate", PAY, {"amount": 2}, recorded=True), None),
        (
            RemainingCall("a", "compensate", PAY, {"amount": "${{ 2 }}"}, recorded=True),
            "amount with the values of these sagas",
        ),
        (RemainingCall("a", "do", Operation("saga"), {"name": "gone", "input": {}}), "there is no saga gone"),
        (RemainingCall("a", "do", Operation("saga"), {"name": None, "input": {}}), "each one that its `name` may give"),
    ],
)
def test_recorded_arguments_and_nested_sagas(project: Project, call: RemainingCall, problem: str | None) -> None:
    told = call_problem(project, call)
    assert told == problem or (told is not None and problem is not None and told.endswith(problem))
