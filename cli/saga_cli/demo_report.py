"""What `saga demo` prints: the shop before, the books after, what is parked, and where to look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from saga_cli.demo_table import money, print_findings, say_table
from saga_cli.output import say

if TYPE_CHECKING:
    from saga_cli.demo_days import DaysDone
    from saga_cli.demo_messages import MessagesDone
    from saga_workers.demo.books import Books
    from saga_workers.demo.run import Demo, Outcome

# What went wrong, by the step that said no.
REASONS = {
    "reserve": "a product had run out",
    "redeem": "a coupon had been used before",
    "charge": "the household's spending limit was reached",
    "authorise": "the household's spending limit was reached",
    "approve": "the manager did not approve a large order",
    "slot": "no delivery slot was left",
    "buy": "the checkout inside was undone",
}
EXPECTED = ("COMPLETED", "COMPENSATED", "PARKED")


def opening(shop: Demo) -> str:
    week, plan = shop.week, shop.plan
    kinds = Counter(order.saga for order in plan.orders)
    return (
        f"The shop opens on {week.first_day}: {len(week.baskets):,} of the week's {week.available:,} real baskets, "
        f"{len(week.limits):,} households, {sum(shelf.units for shelf in week.shelves):,} units of "
        f"{len(week.shelves):,} products.\n"
        f"Each basket is a saga: {', '.join(f'{count} {saga}' for saga, count in kinds.most_common())}."
    )


def print_books(books: Books, outcomes: Sequence[Outcome]) -> None:
    """The sums per outcome over the shop's own columns, and why sagas were undone."""
    ledger = books.ledger
    header = ("", "sagas", "orders", "units reserved", "units sold", "money", "coupons")
    rows = [
        _row(total.state, total.runs, total.orders, total.units_held, total.units_sold, total.money, total.coupons)
        for total in books.totals
    ]
    taken = ledger.held + ledger.charged
    shop = _row("the shop has", "", ledger.orders, ledger.units_held, ledger.units_sold, taken, ledger.coupons)
    say("")
    say_table([header, *rows, shop])
    reasons = Counter(_reason(outcome) for outcome in outcomes if outcome.story["state"] == "COMPENSATED")
    if reasons:
        say("\nCOMPENSATED, and nothing of it is left, because")
        for reason, count in reasons.most_common():
            say(f"  {count:>4}  {reason}")
    say("")
    say(
        f"  stock  {ledger.units_initial:,} delivered = {ledger.units_on_shelf:,} on the shelf "
        f"+ {ledger.units_held:,} reserved + {ledger.units_sold:,} sold"
    )
    say(
        f"  money  {money(ledger.limits)} of limits = {money(ledger.available)} available "
        f"+ {money(ledger.held)} held + {money(ledger.charged)} charged"
    )
    say("")
    print_findings(books.findings)


def print_parked(stuck: Sequence[Outcome]) -> None:
    say(f"\nPARKED, because only a person can help: {len(stuck)}")
    for outcome in stuck:
        entry = outcome.story["parked"][0]
        say(f"  {outcome.story['id']} at {entry['step']}: {entry['why']}")


def print_verdict(before: Books, after: Books) -> None:
    """One sentence about both looks at the books."""
    from saga_workers.demo.books import mismatches

    say("")
    for when, books in (("before", before), ("after", after)):
        for subject, (sagas, shop) in mismatches(books).items():
            say(f"✖ {when} the help: {subject}: the sagas come to {sagas}, the shop has {shop}")
        for finding in books.findings if when == "after" else ():
            if finding.count:
                say(f"✖ after the help: {finding.check.rule}: not so for {', '.join(finding.wrong)}")
    if _is_right(before) and _is_right(after):
        states = ", ".join(f"{total.runs} {total.state}" for total in after.totals)
        say(f"✔ The books balance to the cent: {states}.")
    else:
        say("✖ The books do not balance.")


def print_days(days: DaysDone, books: Books) -> None:
    """One sentence about the days, and about the shop after them."""
    if days.left_out is not None:
        return
    say("")
    for surprise in days.surprises:
        say(f"✖ {surprise}")
    states = ", ".join(
        f"{count} {state}" for state, count in Counter(one.story["state"] for one in days.outcomes).items()
    )
    if days.right and _is_right(books):
        say(f"✔ The days and the books agree to the cent: {states}.")
    else:
        say("✖ The days and the books do not agree.")


def print_farewell(shop: Demo, outcomes: Sequence[Outcome], days: DaysDone, ran: float, total: float) -> None:
    """Where to look next, and how to stop."""
    baskets = len(outcomes)
    closed = f", the days in {days.seconds:.1f} s" if days.outcomes else ""
    say(f"{baskets} {'basket' if baskets == 1 else 'baskets'} in {ran:.1f} s{closed}, {total:.1f} s with everything.")
    say(f"\nWeb UI  {shop.settings.temporal.web_ui}")
    say("\nWorth a look:")
    for outcome, why in worth_a_look(outcomes):
        _say_link(outcome.story, why)
    for day in days.outcomes:
        if day.close.role == "undone":
            _say_link(day.story, "was published, and taken back by a person")
    say(f"\nAll of it is in {shop.settings.root}; there:")
    first = worth_a_look(outcomes)[0][0]
    for command, what in (
        (f"saga show {first.story['id']}", "the whole story of one saga"),
        ("saga list --state COMPENSATED", "one line for each"),
        ("saga dev down", "stop everything (--wipe: and delete the data)"),
    ):
        say(f"  {command:<44} {what}")


def _say_link(story: Mapping[str, Any], why: str) -> None:
    say(f"  {story['id']}  {why}")
    if story.get("web_ui"):
        say(f"    {story['web_ui']}")


def worth_a_look(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, str]]:
    """Up to three: one that a person helped, one that was undone late, one with branches and a saga inside."""
    found: list[tuple[Outcome, str]] = []

    def add(candidates: Sequence[Outcome], why: str) -> None:
        fresh = [one for one in candidates if all(one is not other for other, _ in found)]
        if fresh and len(found) < 3:
            found.append((fresh[0], why))

    def state(name: str) -> list[Outcome]:
        return [one for one in outcomes if one.story["state"] == name]

    add([one for one in outcomes if one.story["operator"]], "was parked and helped on by a person")
    # The more kinds of steps had to be undone, the more there is to see.
    add(sorted(state("COMPENSATED"), key=_undone, reverse=True), "was undone step by step")
    add([one for one in state("COMPLETED") if one.order.saga == "weekly-order"], "has branches and a saga inside")
    add(state("PARKED"), "waits for a person")
    add(state("COMPLETED"), "went through")
    add(state("COMPLETED"), "went through, too")
    return found


def document(
    shop: Demo,
    outcomes: Sequence[Outcome],
    looks: Sequence[Books],
    messages: MessagesDone,
    days: DaysDone,
    *,
    seconds: float,
) -> dict[str, Any]:
    """The JSON of `saga demo`; ``balanced`` is what the exit code says."""
    after = looks[-1]
    states = Counter(outcome.story["state"] for outcome in outcomes)
    return {
        "baskets": len(outcomes),
        "round": shop.round,
        "states": dict(states),
        "balanced": all(map(_is_right, looks)) and set(states) <= set(EXPECTED) and messages.right and days.right,
        "checks": [
            {"subject": finding.check.subject, "rule": finding.check.rule, "wrong": finding.count}
            for finding in after.findings
        ],
        "messages": messages.to_json(),
        "days": days.to_json(),
        "worth_a_look": [outcome.story["id"] for outcome, _ in worth_a_look(outcomes)],
        "web_ui": shop.settings.temporal.web_ui,
        "project": str(shop.settings.root),
        "seconds": round(seconds, 1),
    }


def _is_right(books: Books) -> bool:
    from saga_workers.demo.books import mismatches

    return books.balanced and not mismatches(books)


def _undone(outcome: Outcome) -> tuple[int, int]:
    """How many steps, and how many entries of them, were undone."""
    undone = [step["step"] for step in outcome.story["steps"] if step["state"] == "COMPENSATED"]
    return len(set(undone)), len(undone)


def _reason(outcome: Outcome) -> str:
    reason = outcome.story["reason"] or {}
    step = (reason.get("step") or "").partition("#")[0]
    return REASONS.get(step, reason.get("message") or reason.get("kind") or "of an unknown cause")


def _row(name: str, *values: Decimal | int | str) -> list[str]:
    return [name, *(money(one) if isinstance(one, Decimal) else f"{one:,}" if one != "" else "" for one in values)]
