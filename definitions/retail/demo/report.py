"""The output of `saga demo`: the shop before, the books after, what is parked, and where to look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from saga_cli.output import echo
from sagas.protocol.saga_view import SagaView
from sagas.text.shell import saga_command

from .accounts import format_money, print_columns, print_results

if TYPE_CHECKING:
    from .accounts import Accounts, InvariantResult
    from .day_accounts import LakeContents
    from .day_close import DayClosing, DayOutcome, DaysReport
    from .messages import MessagesReport
    from .scenario import BasketOutcome, Demo


# What went wrong, by the step that rejected.
REASONS = {
    "reserve": "a product was out of stock",
    "redeem": "a coupon was already used",
    "charge": "the household's spending limit was reached",
    "authorise": "the household's spending limit was reached",
    "approve": "the manager did not approve a large order",
    "slot": "no delivery slot was left",
    "buy": "the nested checkout was undone",
}
EXPECTED = ("COMPLETED", "COMPENSATED", "PARKED")


def describe_shop(shop: Demo) -> str:
    week, plan = shop.week, shop.plan
    kinds = Counter(order.saga for order in plan.orders)
    return (
        f"The shop opens on {week.first_day}: {len(week.baskets):,} of the week's {week.available:,} real baskets, "
        f"{len(week.limits):,} households, {sum(shelf.units for shelf in week.shelves):,} units of "
        f"{len(week.shelves):,} products.\n"
        f"Each basket is a saga: {', '.join(f'{count} {saga}' for saga, count in kinds.most_common())}."
    )


def print_accounts(books: Accounts, outcomes: Sequence[BasketOutcome]) -> None:
    """The sums per outcome over the shop's own columns, and why sagas were undone."""
    ledger = books.shop
    header = ("", "sagas", "orders", "units reserved", "units sold", "money", "coupons")
    rows = [
        _table_row(
            total.state, total.runs, total.orders, total.units_held, total.units_sold, total.money, total.coupons
        )
        for total in books.totals
    ]
    taken = ledger.held + ledger.charged
    shop = _table_row("the shop has", "", ledger.orders, ledger.units_held, ledger.units_sold, taken, ledger.coupons)
    echo("")
    print_columns([header, *rows, shop])
    reasons = Counter(_reason(outcome) for outcome in outcomes if outcome.view.state == "COMPENSATED")
    if reasons:
        echo("", "COMPENSATED without residue, by reason:")
        for reason, count in reasons.most_common():
            echo(f"  {count:>4}  {reason}")
    echo("")
    echo(
        f"  stock  {ledger.units_initial:,} delivered = {ledger.units_on_shelf:,} on the shelf "
        f"+ {ledger.units_held:,} reserved + {ledger.units_sold:,} sold"
    )
    echo(
        f"  money  {format_money(ledger.limits)} of limits = {format_money(ledger.available)} available "
        f"+ {format_money(ledger.held)} held + {format_money(ledger.charged)} charged"
    )
    echo("")
    print_results(books.results)


def print_parked(stuck: Sequence[BasketOutcome]) -> None:
    echo("", f"PARKED, waiting for an operator: {len(stuck)}")
    for outcome in stuck:
        entry = outcome.view.parked[0]
        echo(f"  {outcome.view.id} at {entry.step}: {entry.why}")


def print_verdict(before: Accounts, after: Accounts) -> None:
    """One sentence about both looks at the books."""
    from .accounts import mismatches

    echo("")
    for when, books in (("before", before), ("after", after)):
        for subject, (sagas, shop) in mismatches(books).items():
            echo(f"✖ {when} the decision: {subject}: the sagas report {sagas}, the shop has {shop}")
        for finding in books.results if when == "after" else ():
            if finding.count:
                echo(f"✖ after the decision: {finding.invariant.rule}: violated by {', '.join(finding.violations)}")
    if _is_balanced(before) and _is_balanced(after):
        states = ", ".join(f"{total.runs} {total.state}" for total in after.totals)
        echo(f"✔ The accounts balance to the cent: {states}.")
    else:
        echo("✖ The accounts do not balance.")


def print_days(days: DaysReport, books: Accounts) -> None:
    """One sentence about the days, and about the shop after them."""
    if days.left_out is not None:
        return
    echo("")
    for surprise in days.surprises:
        echo(f"✖ {surprise}")
    states = ", ".join(
        f"{count} {state}" for state, count in Counter(outcome.view.state for outcome in days.outcomes).items()
    )
    if days.ok and _is_balanced(books):
        echo(f"✔ The days and the accounts agree to the cent: {states}.")
    else:
        echo("✖ The days and the accounts do not agree.")


def print_farewell(shop: Demo, outcomes: Sequence[BasketOutcome], days: DaysReport, ran: float, total: float) -> None:
    """Print where to look next, and how to stop."""
    baskets = len(outcomes)
    closed = f", the days in {days.seconds:.1f} s" if days.outcomes else ""
    echo(f"{baskets} {'basket' if baskets == 1 else 'baskets'} in {ran:.1f} s{closed}, {total:.1f} s in total.")
    echo("", f"Web UI  {shop.settings.temporal.web_ui}")
    echo("", "Worth a look:")
    for outcome, why in worth_a_look(outcomes):
        _say_link(outcome.view, why)
    for day in days.outcomes:
        if day.close.role == "undone":
            _say_link(day.view, "was published, and undone by an operator")
    echo("", f"The project is {shop.settings.root}; commands to run there:")
    first = worth_a_look(outcomes)[0][0]
    for command, what in (
        (saga_command("show", first.view.id), "show the state and the history of one saga"),
        ("saga list --state COMPENSATED", "list the compensated sagas"),
        ("saga dev down", "stop everything (--wipe also deletes the data)"),
    ):
        echo(f"  {command:<44} {what}")


def _say_link(view: SagaView, why: str) -> None:
    echo(f"  {view.id}  {why}")
    if view.web_ui:
        echo(f"    {view.web_ui}")


def worth_a_look(outcomes: Sequence[BasketOutcome]) -> list[tuple[BasketOutcome, str]]:
    """Up to three: one that a person helped, one that was undone late, one with branches and a saga inside."""
    chosen: list[tuple[BasketOutcome, str]] = []

    def add(candidates: Sequence[BasketOutcome], why: str) -> None:
        fresh = [outcome for outcome in candidates if all(outcome is not other for other, _ in chosen)]
        if fresh and len(chosen) < 3:
            chosen.append((fresh[0], why))

    def state(name: str) -> list[BasketOutcome]:
        return [outcome for outcome in outcomes if outcome.view.state == name]

    add([outcome for outcome in outcomes if outcome.view.operator], "was parked and resolved by an operator")
    # The more kinds of steps had to be undone, the more there is to see.
    add(sorted(state("COMPENSATED"), key=_undone, reverse=True), "was undone step by step")
    add(
        [outcome for outcome in state("COMPLETED") if outcome.order.saga == "weekly-order"],
        "has branches and a nested saga",
    )
    add(state("PARKED"), "waits for an operator")
    add(state("COMPLETED"), "completed")
    add(state("COMPLETED"), "completed as well")
    return chosen


def document(
    shop: Demo,
    outcomes: Sequence[BasketOutcome],
    accounts: Sequence[Accounts],
    messages: MessagesReport,
    days: DaysReport,
    *,
    seconds: float,
) -> dict[str, Any]:
    """The JSON of `saga demo`; ``balanced`` is what the exit code says."""
    after = accounts[-1]
    states = Counter(outcome.view.state for outcome in outcomes)
    return {
        "baskets": len(outcomes),
        "round": shop.round,
        "states": dict(states),
        "balanced": all(map(_is_balanced, accounts)) and set(states) <= set(EXPECTED) and messages.ok and days.ok,
        "checks": [
            {"subject": finding.invariant.subject, "rule": finding.invariant.rule, "wrong": finding.count}
            for finding in after.results
        ],
        "messages": messages.to_json(),
        "days": days.to_json(),
        "worth_a_look": [outcome.view.id for outcome, _ in worth_a_look(outcomes)],
        "web_ui": shop.settings.temporal.web_ui,
        "project": str(shop.settings.root),
        "seconds": round(seconds, 1),
    }


def _is_balanced(books: Accounts) -> bool:
    from .accounts import mismatches

    return books.balanced and not mismatches(books)


def _undone(outcome: BasketOutcome) -> tuple[int, int]:
    """How many steps, and how many entries of them, were undone."""
    undone = [step.step for step in outcome.view.steps if step.state == "COMPENSATED"]
    return len(set(undone)), len(undone)


def _reason(outcome: BasketOutcome) -> str:
    reason = outcome.view.reason
    if reason is None:
        return "unknown reason"
    return REASONS.get((reason.step or "").partition("#")[0], reason.message or reason.kind)


def _table_row(name: str, *values: Decimal | int | str) -> list[str]:
    return [
        name,
        *(
            format_money(value) if isinstance(value, Decimal) else f"{value:,}" if value != "" else ""
            for value in values
        ),
    ]


# What `saga demo` prints about the days: how each was closed, what the lake holds, and what a reconciliation finds.


def describe_days(closing: DayClosing) -> str:
    return (
        f"Each day is closed by a saga: its order lines are joined with {closing.promotions:,} promotions and become\n"
        "two tables of a lake, compared with the receipts; the agency gets its commission; both tables are published\n"
        "together."
    )


def describe_day(outcome: DayOutcome) -> str:
    """How a day was closed, or which step rejected and why."""
    view, sales = outcome.view, outcome.close.sales
    line = f"  {sales.day}  {view.state:<11}  "
    if view.state == "COMPLETED":
        return f"{line}{sales.lines} lines over {format_money(sales.amount)}: published, and finance is notified"
    reason = view.reason
    lines = [f"{line}{reason and reason.message}"]
    if outcome.tampered is not None:
        shown = [
            f"a row had been tampered with:  sql> {outcome.tampered};",
            *_refused_rows(reason.details if reason else {}),
        ]
        lines += [f"{'':14}{text}" for text in shown]
    return "\n".join(lines)


def _refused_rows(details: Mapping[str, Any]) -> list[str]:
    """The rows that the audit shows, and where its report is."""
    lines: list[str] = []
    for check in details.get("checks", ()):
        for sample in check["samples"] if check["kind"] == "reconcile" else ():
            key = ", ".join(f"{name} {value}" for name, value in sample["key"].items())
            differing = ", ".join(
                f"{name} {sample['left'][name]} in the orders, {sample['right'][name]} on the receipt"
                for name in sample["columns"]
            )
            lines.append(f"{key}: {differing}")
    if details.get("report"):
        lines.append(f"the audit's report: {details['report']}")
    return lines


def print_lake(lake: LakeContents, outcomes: Sequence[DayOutcome], findings: Sequence[InvariantResult]) -> None:
    """The sums over the days by outcome, and what the lake holds."""
    header = ("", "days", "lines", "sales", "facts", "in totals", "money in the lake")
    rows: list[list[str]] = []
    for state in dict.fromkeys(outcome.view.state for outcome in outcomes):
        days = [outcome.close.sales for outcome in outcomes if outcome.view.state == state]
        seen = {day.day for day in days} if state == "COMPLETED" else set()
        sold = sum((day.amount for day in days), Decimal())
        lines = sum(day.lines for day in days)
        rows.append([state, str(len(days)), f"{lines:,}", format_money(sold), *_lake_columns(lake, seen)])
    everything = {row["day"] for row in lake.rows["daily_facts"]}
    echo("")
    print_columns([header, *rows, ["the lake has", str(len(everything)), "", "", *_lake_columns(lake, everything)]])
    echo("")
    print_results(findings)


def _lake_columns(lake: LakeContents, days: set[Any]) -> list[str]:
    facts = [row for row in lake.rows["daily_facts"] if row["day"] in days]
    totals = [row for row in lake.rows["daily_totals"] if row["day"] in days]
    return [
        f"{len(facts):,}",
        f"{sum(row['lines'] for row in totals):,}",
        format_money(sum((row["amount"] for row in facts), Decimal())),
    ]


def print_reconciliation(reconciliation: Mapping[str, Any]) -> None:
    """The verdict, and each difference with the command that a person would type."""
    if reconciliation["consistent"]:
        echo(f"  ✔ everything reconciles: {_read_counts(reconciliation)}")
        return
    from saga_spark.reconcile.findings import count_text

    echo(f"  ✖ {count_text(sum(reconciliation['counts'].values()))}: {_read_counts(reconciliation)}")
    for finding in reconciliation["findings"]:
        words = [
            finding["class"].replace("_", " "),
            finding["saga_id"] or "no saga",
            finding["step"],
            finding["place"],
            _row_key(finding),
        ]
        echo(f"    {'  '.join(word for word in words if word)}", f"      {finding['command']}")


def _row_key(finding: Mapping[str, Any]) -> str:
    """The key of the row, or what a row that is not there would be bound to."""
    if finding["row"]:
        return ", ".join(f"{name} {value}" for name, value in finding["row"].items())
    bound = finding["details"].get("bound")
    return "" if bound is None else f"no row for {bound}"


def _read_counts(reconciliation: Mapping[str, Any]) -> str:
    read = dict(reconciliation["read"])
    sagas, outputs, guards = read.pop("sagas"), read.pop("outputs", 0), read.pop("shop.guard", 0)
    records = read.pop("records of topics", None)
    events = "" if records is None else f", {records:,} records of topics"
    rows = sum(count for name, count in read.items())
    return f"{sagas:,} sagas, {guards:,} rows of the guard, {rows:,} of the shop, {outputs:,} outputs of Spark{events}"
