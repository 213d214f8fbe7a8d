"""Every way that the closing of a day can end: the definition alone, in memory, without Spark."""

from __future__ import annotations

from decimal import Decimal

import pytest

DAY = {"day": "2017-12-18"}

# What the real steps would answer.
RESULTS = {
    "count": [{"lines": 3, "amount": Decimal("107.25")}],
    "facts": {"rows": 3},
    "commission": {"id": "day-close-2017-12-18/commission", "amount": Decimal("2.15")},
}


def test_a_day_is_published_and_then_told(saga):
    run = saga.run("day-close", DAY, results=RESULTS)
    assert run.state == "COMPLETED"
    assert run.output == {"lines": 3, "sales": Decimal("107.25"), "commission": Decimal("2.15")}
    confirmed = {step: row["confirmation"]["uses"] for step, row in rows(run).items() if row["confirmation"]}
    assert confirmed == {"facts": "spark.publish", "totals": "spark.publish", "tell": "finance.send"}


def test_an_audit_that_refuses_publishes_nothing_and_pays_nobody(saga):
    run = saga.run("day-close", DAY, outcomes={"facts": "rejected"}, results=RESULTS)
    assert (run.state, run.undone) == ("COMPENSATED", [])
    assert rows(run)["commission"]["state"] == "PENDING"


def test_a_refused_commission_discards_both_tables(saga):
    run = saga.run("day-close", DAY, outcomes={"commission": "rejected"}, results=RESULTS)
    assert (run.state, run.undone) == ("COMPENSATED", ["totals", "facts"])
    assert {rows(run)[step]["compensation"]["uses"] for step in ("facts", "totals")} == {"spark.discard"}


def test_finance_that_does_not_answer_takes_the_commission_back(saga):
    run = saga.run("day-close", DAY, outcomes={"tell": "failed"}, results=RESULTS)
    assert (run.state, run.undone) == ("COMPENSATED", ["commission", "totals", "facts"])


@pytest.mark.parametrize("step", ["facts", "totals", "tell"])
def test_after_the_commit_point_only_a_person_may_decide(saga, step):
    run = saga.run("day-close", DAY, outcomes={f"{step}/confirm": "rejected"}, results=RESULTS)
    assert (run.state, run.undone) == ("PARKED", [])


def test_a_day_can_be_undone_for_as_long_as_the_tables_remember(saga):
    assert saga.run("day-close", DAY, results=RESULTS).document["can_undo"] is True


def test_every_failure(saga):
    saga.check_all("day-close", DAY, results=RESULTS)


def rows(run):
    return {row["id"]: row for row in run.document["steps"]}
