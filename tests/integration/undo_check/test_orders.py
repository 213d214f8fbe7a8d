"""The orders of `saga verify-undo`: each starts from the same rows and runs as in `saga simulate`; none is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_cli.main import run
from saga_workers.undo_check.planned_orders import SAGA_UNDO
from tests.integration.undo_check.undo_projects import SQLITE_TABLES, last_step, problems, sql, verified, write_project

MINUS, PLUS = "update account set n = n - 1 where id = 'a'", "update account set n = n + 1 where id = 'a'"
WRONG = "update account set n = n + 77 where id = 'a'"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_locked_rows_of_one_order_do_not_reject_the_next_one(url: str, tmp_path: Path) -> None:
    hold = {"id": "hold", **sql(MINUS, compensate="auto")}
    undo = sql("update journal set line = 'other' where id = 1")
    charge = {"id": "charge", **sql("update journal set line = 'charged' where id = 1", compensate=undo)}
    report = verified(write_project(tmp_path, url, SQLITE_TABLES, [hold, charge, last_step()]))
    assert [order.deviation for order in report.orders if order.deviation] == []
    assert problems(report) == ["the undo of charge leaves 1 changed row in shop · journal (id=1): line"]


REJECTED_AGAIN = """
from sagas import Rejected, Step, action

CALLS = []

@action("book", connection="shop")
async def book(step: Step) -> dict:
    CALLS.append(1)
    if len(CALLS) > 1:
        raise Rejected("it is booked")
    await step.sql.execute("update account set n = n - 1")
    return {}

@action("cancel", connection="shop")
async def cancel(step: Step) -> dict:
    await step.sql.execute("update account set n = n + 1")
    return {}
"""


def test_an_order_that_does_not_run_as_simulated_is_an_error(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path, url, SQLITE_TABLES, [
        {"id": "book", "uses": "book", "compensate": "cancel"}, last_step()
    ], REJECTED_AGAIN)  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(["verify-undo", "s"]) == 8
    shown = " ".join(capsys.readouterr().out.split())
    assert "· book not verified: no order that undoes it has run as in `saga simulate`" in shown
    assert "ended at book: it is booked" in shown
    assert "orders did not run as in `saga simulate`" in shown
    assert "✔" not in shown


def test_a_confirmed_step_is_undone_as_by_saga_undo(url: str, tmp_path: Path) -> None:
    confirmed = sql(MINUS, confirm=sql(MINUS), compensate={**sql(PLUS), "confirmed": sql(WRONG)})
    report = verified(write_project(tmp_path, url, SQLITE_TABLES, [{"id": "a", **confirmed}]))
    assert problems(report) == ["the undo of a leaves 1 changed row in shop · account (id=a): n"]
    assert {order.fault for order in report.orders if order.left} == {SAGA_UNDO}


def test_an_action_of_an_undo_that_no_order_runs_is_named(url: str, tmp_path: Path) -> None:
    confirmed = sql(MINUS, confirm=sql(MINUS), compensate={**sql(PLUS), "confirmed": sql(WRONG)})
    report = verified(write_project(tmp_path, url, SQLITE_TABLES, [{"id": "a", **confirmed}, last_step()]))
    [verdict] = report.steps
    assert (verdict.result, report.differs) == ("not verified", False)
    assert verdict.why is not None
    assert verdict.why.startswith("no order runs its compensate.confirmed: its pivot last is done")


def test_each_alternate_of_an_undo_is_run(url: str, tmp_path: Path) -> None:
    alternates = [sql(PLUS), sql(PLUS), sql(WRONG)]
    report = verified(write_project(tmp_path, url, SQLITE_TABLES, [
        {"id": "a", **sql(MINUS, compensate=alternates)}, last_step()
    ]))  # fmt: skip
    assert problems(report) == ["the undo of a leaves 1 changed row in shop · account (id=a): n"]
    assert {order.fault for order in report.orders if order.left} == {"compensation fails"}


def test_a_step_that_the_database_refuses_is_left_out_of_all_orders(url: str, tmp_path: Path) -> None:
    gift = sql("update account set n = 0 where id = 'nobody'", compensate=sql(WRONG), on_failure="continue")
    gift["with"]["run"][0] |= {"expect_rows": 1, "rejected": "there is no gift"}
    report = verified(write_project(tmp_path, url, SQLITE_TABLES, [
        {"id": "a", **sql(MINUS, compensate=sql(PLUS))}, {"id": "gift", **gift}, last_step()
    ]))  # fmt: skip
    assert problems(report) == []
    assert {step.step: (step.result, step.why) for step in report.steps} == {
        "a": ("verified", None), "gift": ("not verified", "no order undoes it with this input")
    }  # fmt: skip
