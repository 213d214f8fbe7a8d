"""The messages of the shop (order events, finance's bookings of them, notifications), compared with the sagas."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from saga_cli.output import echo
from saga_workers.client import Client
from sagas.protocol.saga_view import NotificationView

from .accounts import (
    Accounts,
    Invariant,
    InvariantResult,
    format_money,
    print_columns,
    print_results,
)
from .order_channel import TOPIC, OrderAmount, OrderChannel
from .shopfront import ReceivedEvent

if TYPE_CHECKING:
    from .scenario import BasketOutcome, Demo


NOTIFICATION_TIMEOUT = 60.0
"""Seconds until a notification that is still tried counts as not delivered."""

_POLL_INTERVAL = 0.3


@dataclass(frozen=True, slots=True)
class OrderSum:
    """A number of orders and their money."""

    orders: int
    amount: Decimal

    @classmethod
    def of(cls, orders: Iterable[OrderAmount]) -> OrderSum:
        amounts = list(orders)
        return cls(len(amounts), sum((Decimal(order.amount) for order in amounts), Decimal()))


@dataclass(frozen=True, slots=True)
class EventReport:
    """The order events: sums by where they were counted, and the checks. ``sagas``: state → sum, of those that have
    placed an order."""

    sagas: Mapping[str, OrderSum]
    shop: OrderSum
    topic: OrderSum
    finance: OrderSum
    results: Sequence[InvariantResult]


@dataclass(frozen=True, slots=True)
class NotificationReport:
    """The notifications: ``attempts`` → how many were delivered after so many."""

    total: int
    attempts: Mapping[int, int]
    results: Sequence[InvariantResult]


async def check_events(channel: OrderChannel, books: Accounts) -> EventReport:
    """Wait until all events have got through, and count them where they are. Raises SagaError: they do not."""
    await channel.drain()
    orders, events, bookings = await channel.orders(), await channel.events(), await channel.bookings()
    states = await channel.outbox_counts()
    waiting = {state: count for state, count in states.items() if state not in ("PUBLISHED", "DROPPED")}
    undecided = await channel.undecided_records()
    return EventReport(
        sagas={total.state: OrderSum(total.orders, total.money) for total in books.totals if total.orders},
        shop=OrderSum.of(orders),
        topic=OrderSum.of(events),
        finance=OrderSum.of(bookings),
        results=(
            _result(
                "outbox",
                "every event has been published; none is held or refused",
                [f"{count} {state}" for state, count in waiting.items()],
            ),
            _result(
                "topic",
                "every order that was placed is one event under read_committed, to the cent, and no other is",
                differing(orders, events),
            ),
            _result("topic", f"no transaction is open in {TOPIC}", [f"{undecided} records"] if undecided else []),
            _result(
                "finance",
                "every order event is booked once, to the cent, and nothing else is",
                differing(events, bookings),
            ),
        ),
    )


def differing(left: Sequence[OrderAmount], right: Sequence[OrderAmount]) -> list[str]:
    """The orders that are not equally often on both sides with the same money."""
    on_left, on_right = Counter(left), Counter(right)
    return sorted({f"order {order.order}" for order in ((on_left - on_right) + (on_right - on_left))})


async def check_notifications(client: Client, sagas: Iterable[str], received: Any) -> NotificationReport:
    """Wait until the notifications of these sagas have been delivered or given up.

    ``arrived`` gives what the receiver has seen, event id → :class:`Arrived`.
    """
    ids = sorted(set(sagas))
    end = time.monotonic() + NOTIFICATION_TIMEOUT
    while True:
        views = await asyncio.gather(*map(client.view, ids))
        rows = {f"{view.id}/{row.id}": row for view in views for row in view.notifications}
        if all(row.state != "PENDING" for row in rows.values()) or time.monotonic() > end:
            break
        await asyncio.sleep(_POLL_INTERVAL)
    return compare_deliveries(rows, received())


def compare_deliveries(
    rows: Mapping[str, NotificationView], received: Mapping[str, ReceivedEvent]
) -> NotificationReport:
    """Hold what the sagas say of their notifications against what has arrived."""
    delivered = {id: row for id, row in rows.items() if row.state == "DELIVERED"}
    accepted = {id for id, event in received.items() if event.accepted}
    return NotificationReport(
        total=len(rows),
        attempts=Counter(row.attempts or 0 for row in delivered.values()),
        results=(
            _result("notices", "every notification was delivered in the end", sorted(rows.keys() - delivered.keys())),
            _result(
                "notices",
                "what the web site has accepted, signed by the sagas, is what was delivered",
                sorted(accepted ^ delivered.keys()),
            ),
        ),
    )


def _result(subject: str, rule: str, wrong: Sequence[str]) -> InvariantResult:
    return InvariantResult(Invariant(subject, rule, ""), len(wrong), tuple(wrong[:3]))


# The part of `saga demo` about what leaves the shop: order events, the books of finance, and notifications.


@dataclass(slots=True)
class MessagesReport:
    """The checks of events and notifications. None: left out, and ``left_out`` has a sentence for each that was."""

    events: EventReport | None
    notifications: NotificationReport | None
    left_out: Sequence[str]

    @property
    def results(self) -> list[InvariantResult]:
        return [
            *(self.events.results if self.events else ()),
            *(self.notifications.results if self.notifications else ()),
        ]

    @property
    def ok(self) -> bool:
        """Every check holds."""
        return not any(result.count for result in self.results)

    def to_json(self) -> dict[str, Any]:
        events, notices = self.events, self.notifications
        return {
            "left_out": list(self.left_out),
            "orders": None
            if events is None
            else {
                "sagas": {state: _sum_json(amount) for state, amount in events.sagas.items()},
                "shop": _sum_json(events.shop),
                "topic": _sum_json(events.topic),
                "finance": _sum_json(events.finance),
            },
            "notifications": None
            if notices is None
            else {"total": notices.total, "delivered_after": {str(n): count for n, count in notices.attempts.items()}},
            "checks": [
                {"subject": result.invariant.subject, "rule": result.invariant.rule, "wrong": result.count}
                for result in self.results
            ],
        }


async def report_messages(
    shop: Demo, outcomes: Sequence[BasketOutcome], parked: Sequence[BasketOutcome], books: Accounts
) -> MessagesReport:
    """Wait until everything has got out, and show the counts. ``parked``: what was parked before anybody helped."""

    published = ", which a relay publishes and finance books" if shop.channel.start is not None else ""
    echo("", f"Events: each order is an event in the outbox{published}.")
    left_out: list[str] = []
    events = notices = None
    if shop.channel.start is None:
        left_out.append("Kafka is not running, so the order events stay in the outbox, and finance books nothing")
    else:
        events = await check_events(shop.channel, books)
        _print_events(events)
    if shop.shopfront is None:
        url = shop.settings.connection("shopfront").url
        left_out.append(f"Another process listens at {url}, so the demo does not receive the notifications")
    else:
        receiver = shop.shopfront
        sagas = [outcome.view.id for outcome in parked]
        sagas += [shop.saga_id(outcome.order) for outcome in outcomes if outcome.order.saga == "weekly-order"]
        notices = await check_notifications(shop.client, sagas, lambda: receiver.received)
        _print_notifications(notices)
    for message in left_out:
        echo(f"  {message}.")
    done = MessagesReport(events, notices, left_out)
    _print_verdict(done)
    return done


def _print_events(events: EventReport) -> None:
    rows = [
        *((f"sagas {state}", amount) for state, amount in events.sagas.items()),
        ("the shop has", events.shop),
        ("events in the topic", events.topic),
        ("booked by finance", events.finance),
    ]
    echo("")
    print_columns(
        [("", "orders", "money"), *([name, f"{sums.orders:,}", format_money(sums.amount)] for name, sums in rows)]
    )
    echo("")
    print_results(events.results)


def _print_notifications(notices: NotificationReport) -> None:
    print_results(notices.results)
    for attempts, count in sorted(notices.attempts.items()):
        echo(
            f"    {count} notification{'' if count == 1 else 's'} delivered after {attempts} attempts: "
            "the shop's web site was down before"
        )


def _print_verdict(done: MessagesReport) -> None:
    if not done.ok:
        echo("", "✖ The events and notifications do not match the sagas.")
    elif done.events is not None:
        completed = done.events.sagas.get("COMPLETED")
        finance = done.events.finance
        others = f" and {finance.orders - completed.orders} PARKED" if completed and finance != completed else ""
        echo(
            "",
            f"✔ {completed.orders if completed else 0} orders COMPLETED{others} = {done.events.topic.orders} events "
            f"= {finance.orders} bookings, {format_money(finance.amount)} each.",
        )


def _sum_json(sums: OrderSum) -> dict[str, Any]:
    return {"orders": sums.orders, "amount": str(sums.amount)}
