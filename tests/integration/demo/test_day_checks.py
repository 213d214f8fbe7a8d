"""The reconciliation checks of closed days: none fires on consistent data, and each detects its mismatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from definitions.retail.demo.accounts import InvariantResult
from definitions.retail.demo.day_accounts import DAY_INVARIANTS, ClosedDay, LakeContents, check_days
from definitions.retail.demo.plan import DaySales, PlannedClose
from tests.integration.demo.conftest import ActionRunner

RATE = Decimal("0.02")
DAY = date(2017, 12, 18)
SALES = DaySales(DAY, 1, Decimal("3.98"))
GOOD = ClosedDay(PlannedClose("good", SALES), "day-close-good", "COMPLETED", committed=True)
REFUSED = ClosedDay(PlannedClose("refused", SALES), "day-close-refused", "COMPENSATED", committed=False)
UNDONE = ClosedDay(PlannedClose("undone", SALES), "day-close-undone", "COMPENSATED", committed=True)
DAYS = (GOOD, REFUSED, UNDONE)
WRITERS = frozenset({GOOD.saga_id, UNDONE.saga_id})


def seen(order: int, **facts: Any) -> LakeContents:
    """The lake with one order of the closed day."""
    fact = {"order_id": order, "sku": "milk", "day": DAY, "quantity": 2, "amount": Decimal("3.98"), "placement": "none"}
    total = {"day": DAY, "placement": "none", "lines": 1, "units": 2, "amount": Decimal("3.98")}
    return LakeContents(
        rows={"daily_facts": [fact | facts], "daily_totals": [total]},
        writers={"daily_facts": WRITERS, "daily_totals": WRITERS},
        moved_by={"daily_facts": "7", "daily_totals": "7"},
    )


async def close_one(run_action: ActionRunner) -> LakeContents:
    line = {"basket": "b-1", "sku": "milk", "quantity": 2, "amount": Decimal("3.98")}
    await run_action("inventory.reserve", **line)
    await run_action("payments.charge", key="s/charge", account="rich", basket="b-1", amount="3.98")
    order = await run_action("orders.place", basket="b-1", charge="s/charge")
    await run_action.run("insert into agency values ('Placements & Co', 1.00)")
    for saga in (GOOD.saga_id, UNDONE.saga_id):
        paid = await run_action("finance.pay", key=f"{saga}/commission", day=str(DAY), amount="0.08")
        note = {"day": str(DAY), "sales": "3.98", "commission": paid.amount}
        await run_action("finance.draft", key=f"{saga}/tell", saga=saga, **note)
        await run_action("finance.send", key=f"{saga}/tell/confirm", saga=saga, **note)
    await run_action("finance.correct", saga=UNDONE.saga_id, **note)
    await run_action("finance.reclaim", commission=f"{UNDONE.saga_id}/commission")
    return seen(order.order_id)


def wrong(findings: Sequence[InvariantResult]) -> list[str]:
    return [finding.invariant.rule for finding in findings if finding.count]


def rule(start: str) -> str:
    [invariant_rule] = [check.rule for check in DAY_INVARIANTS if check.rule.startswith(start)]
    return invariant_rule


async def test_a_correctly_closed_day_has_no_findings(run_action: ActionRunner):
    assert wrong(await check_days(run_action.engine, DAYS, await close_one(run_action), RATE)) == []


CORRUPTIONS: Mapping[str, Any] = {
    "the facts equal": lambda lake: replace(
        lake, rows={**lake.rows, "daily_facts": [{**lake.rows["daily_facts"][0], "sku": "bread"}]}
    ),
    "the totals are": lambda lake: replace(
        lake, rows={**lake.rows, "daily_totals": [{**lake.rows["daily_totals"][0], "amount": Decimal("3.97")}]}
    ),
    "one transaction": lambda lake: replace(lake, moved_by={"daily_facts": "7", "daily_totals": "8"}),
    "a refused day was": lambda lake: replace(
        lake, writers={**lake.writers, "daily_facts": WRITERS | {REFUSED.saga_id}}
    ),
    "both tables have": lambda lake: replace(lake, writers={**lake.writers, "daily_totals": {GOOD.saga_id}}),
}


@pytest.mark.parametrize("start", CORRUPTIONS)
async def test_an_inconsistent_lake_is_found(run_action: ActionRunner, start: str):
    lake = CORRUPTIONS[start](await close_one(run_action))
    assert wrong(await check_days(run_action.engine, DAYS, lake, RATE)) == [rule(start)]


async def test_leftover_staged_files_of_a_refused_day_are_found(run_action: ActionRunner):
    closed_days = (GOOD, replace(REFUSED, staged=("abc/g1/e1/part-0.parquet",)), UNDONE)
    [violation] = [
        check
        for check in await check_days(run_action.engine, closed_days, await close_one(run_action), RATE)
        if check.count
    ]
    assert (violation.invariant.subject, violation.violations) == ("stage", ("abc/g1/e1/part-0.parquet",))


@pytest.mark.parametrize(
    ("damage", "start"),
    [
        ("update commission set amount = amount + 0.01 where state = 'paid'", "the agency has"),
        ("update commission set state = 'paid'", "the agency has"),
        ("delete from finance_note where state = 'corrected'", "finance was notified"),
        ("update finance_note set state = 'sent'", "finance was notified"),
    ],
)
async def test_a_differing_finance_booking_is_found(run_action: ActionRunner, damage: str, start: str):
    lake = await close_one(run_action)
    await run_action.run(damage)
    assert wrong(await check_days(run_action.engine, DAYS, lake, RATE)) == [rule(start)]
