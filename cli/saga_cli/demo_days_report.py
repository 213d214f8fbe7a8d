"""What `saga demo` prints about the days: how each was closed, what the lake holds, and what a reconciliation finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from saga_cli.demo_table import money, print_findings, say_table
from saga_cli.output import say

if TYPE_CHECKING:
    from saga_workers.demo.books import Finding
    from saga_workers.demo.closing import Closing, DayOutcome
    from saga_workers.demo.lake import Lake


def opening(closing: Closing) -> str:
    return (
        f"Each day is closed by a saga: its order lines are joined with {closing.promotions:,} promotions and become\n"
        "two tables of a lake, held against the receipts; the agency gets its commission; both tables appear together."
    )


def one_day(outcome: DayOutcome) -> str:
    """How a day was closed, or who said no and why."""
    story, sales = outcome.story, outcome.close.sales
    line = f"  {sales.day}  {story['state']:<11}  "
    if story["state"] == "COMPLETED":
        return f"{line}{sales.lines} lines over {money(sales.amount)}: both tables are there, and finance was told"
    reason = story["reason"] or {}
    lines = [f"{line}{reason.get('message')}"]
    if outcome.tampered is not None:
        shown = [f"somebody had typed  sql> {outcome.tampered};", *_refused_rows(reason.get("details") or {})]
        lines += [f"{'':14}{text}" for text in shown]
    return "\n".join(lines)


def _refused_rows(details: Mapping[str, Any]) -> list[str]:
    """The rows that the audit shows, and where its report is."""
    found: list[str] = []
    for check in details.get("checks", ()):
        for sample in check["samples"] if check["kind"] == "reconcile" else ():
            key = ", ".join(f"{name} {value}" for name, value in sample["key"].items())
            differing = ", ".join(
                f"{name} {sample['left'][name]} in the orders, {sample['right'][name]} on the receipt"
                for name in sample["columns"]
            )
            found.append(f"{key}: {differing}")
    if details.get("report"):
        found.append(f"the audit's report: {details['report']}")
    return found


def print_books(lake: Lake, outcomes: Sequence[DayOutcome], findings: Sequence[Finding]) -> None:
    """The sums over the days by outcome, and what the lake holds."""
    header = ("", "days", "lines", "sales", "facts", "in totals", "money in the lake")
    rows: list[list[str]] = []
    for state in dict.fromkeys(one.story["state"] for one in outcomes):
        days = [one.close.sales for one in outcomes if one.story["state"] == state]
        seen = {one.day for one in days} if state == "COMPLETED" else set()
        sold = sum((one.amount for one in days), Decimal())
        lines = sum(one.lines for one in days)
        rows.append([state, str(len(days)), f"{lines:,}", money(sold), *_of_lake(lake, seen)])
    everything = {row["day"] for row in lake.rows["daily_facts"]}
    say("")
    say_table([header, *rows, ["the lake has", str(len(everything)), "", "", *_of_lake(lake, everything)]])
    say("")
    print_findings(findings)


def _of_lake(lake: Lake, days: set[Any]) -> list[str]:
    facts = [row for row in lake.rows["daily_facts"] if row["day"] in days]
    totals = [row for row in lake.rows["daily_totals"] if row["day"] in days]
    return [
        f"{len(facts):,}",
        f"{sum(row['lines'] for row in totals):,}",
        money(sum((row["amount"] for row in facts), Decimal())),
    ]


def print_reconciliation(found: Mapping[str, Any]) -> None:
    """The verdict, and each difference with the command that a person would type."""
    if found["agree"]:
        say(f"  ✔ the books agree: {_read(found)}")
        return
    from saga_spark.reconcile.findings import differences

    say(f"  ✖ {differences(sum(found['counts'].values()))}: {_read(found)}")
    for one in found["findings"]:
        words = [one["class"].replace("_", " "), one["saga_id"] or "nobody's", one["step"], one["place"], _row(one)]
        say(f"    {'  '.join(word for word in words if word)}\n      {one['command']}")


def _row(finding: Mapping[str, Any]) -> str:
    """The key of the row, or what a row that is not there would be bound to."""
    if finding["row"]:
        return ", ".join(f"{name} {value}" for name, value in finding["row"].items())
    bound = finding["details"].get("bound")
    return "" if bound is None else f"no row for {bound}"


def _read(found: Mapping[str, Any]) -> str:
    read = dict(found["read"])
    sagas, outputs, guards = read.pop("sagas"), read.pop("outputs", 0), read.pop("shop.guard", 0)
    records = read.pop("records of topics", None)
    events = "" if records is None else f", {records:,} records of topics"
    rows = sum(count for name, count in read.items())
    return f"{sagas:,} sagas, {guards:,} rows of the guard, {rows:,} of the shop, {outputs:,} outputs of Spark{events}"
