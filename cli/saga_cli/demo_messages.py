"""The part of `saga demo` about what leaves the shop: order events, the books of finance, and notifications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saga_cli.demo_table import money, print_findings, say_table
from saga_cli.output import say

if TYPE_CHECKING:
    from saga_workers.demo.books import Books, Finding
    from saga_workers.demo.messages import Notices, Sum, Told
    from saga_workers.demo.run import Demo, Outcome


@dataclass(slots=True)
class MessagesDone:
    """What came of it. None: it was left out, and ``left_out`` has a sentence for each that was."""

    told: Told | None
    notices: Notices | None
    left_out: Sequence[str]

    @property
    def findings(self) -> list[Finding]:
        return [*(self.told.findings if self.told else ()), *(self.notices.findings if self.notices else ())]

    @property
    def right(self) -> bool:
        """Every check holds."""
        return not any(one.count for one in self.findings)

    def to_json(self) -> dict[str, Any]:
        told, notices = self.told, self.notices
        return {
            "left_out": list(self.left_out),
            "orders": None
            if told is None
            else {
                "sagas": {state: _json(one) for state, one in told.sagas.items()},
                "shop": _json(told.shop),
                "topic": _json(told.topic),
                "finance": _json(told.finance),
            },
            "notifications": None
            if notices is None
            else {"total": notices.total, "delivered_after": {str(n): count for n, count in notices.attempts.items()}},
            "checks": [
                {"subject": one.check.subject, "rule": one.check.rule, "wrong": one.count} for one in self.findings
            ],
        }


async def follow_messages(
    shop: Demo, outcomes: Sequence[Outcome], parked: Sequence[Outcome], books: Books
) -> MessagesDone:
    """Wait until everything has got out, and show the counts. ``parked``: what was parked before anybody helped."""
    from saga_workers.demo.messages import follow_events, follow_notices

    published = ", which a relay publishes and finance books" if shop.channel.start is not None else ""
    say(f"\nWhat has left the shop? Each order is an event of its outbox{published}.")
    left_out: list[str] = []
    told = notices = None
    if shop.channel.start is None:
        left_out.append("There is no Kafka here, so the order events stay in the outbox, and finance books nothing")
    else:
        told = await follow_events(shop.channel, books)
        _print_told(told)
    if shop.shopfront is None:
        url = shop.settings.connection("shopfront").url
        left_out.append(f"Somebody else listens at {url}, so nobody hears the notifications")
    else:
        receiver = shop.shopfront
        sagas = [one.story["id"] for one in parked]
        sagas += [shop.saga_id(one.order) for one in outcomes if one.order.saga == "weekly-order"]
        notices = await follow_notices(shop.client, sagas, lambda: receiver.arrived)
        _print_notices(notices)
    for sentence in left_out:
        say(f"  {sentence}.")
    done = MessagesDone(told, notices, left_out)
    _print_verdict(done)
    return done


def _print_told(told: Told) -> None:
    rows = [
        *((f"sagas {state}", one) for state, one in told.sagas.items()),
        ("the shop has", told.shop),
        ("events in the topic", told.topic),
        ("booked by finance", told.finance),
    ]
    say("")
    say_table([("", "orders", "money"), *([name, f"{one.orders:,}", money(one.amount)] for name, one in rows)])
    say("")
    print_findings(told.findings)


def _print_notices(notices: Notices) -> None:
    print_findings(notices.findings)
    for attempts, count in sorted(notices.attempts.items()):
        say(
            f"    {count} notification{'' if count == 1 else 's'} delivered after {attempts} attempts: "
            "the shop's web site was down at first"
        )


def _print_verdict(done: MessagesDone) -> None:
    if not done.right:
        say("\n✖ What has left the shop is not what the sagas did.")
    elif done.told is not None:
        completed = done.told.sagas.get("COMPLETED")
        finance = done.told.finance
        others = f" and {finance.orders - completed.orders} PARKED" if completed and finance != completed else ""
        say(
            f"\n✔ {completed.orders if completed else 0} orders COMPLETED{others} = {done.told.topic.orders} events "
            f"= {finance.orders} bookings, {money(finance.amount)} each."
        )


def _json(one: Sum) -> dict[str, Any]:
    return {"orders": one.orders, "amount": str(one.amount)}
