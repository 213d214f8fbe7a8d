"""What has left the shop: order events, what finance has booked of them, and notifications; held against the sagas."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from saga_workers.client import Client
from saga_workers.demo.books import Books, Check, Finding
from saga_workers.demo.channel import TOPIC, Channel, Seen
from saga_workers.demo.shopfront import Arrived

PATIENCE = 60.0
"""Seconds until a notification that is still tried counts as not delivered."""

_PAUSE = 0.3


@dataclass(frozen=True, slots=True)
class Sum:
    """A number of orders and their money."""

    orders: int
    amount: Decimal

    @classmethod
    def of(cls, seen: Iterable[Seen]) -> Sum:
        found = list(seen)
        return cls(len(found), sum((Decimal(one.amount) for one in found), Decimal()))


@dataclass(frozen=True, slots=True)
class Told:
    """The order events: sums by where they were counted, and the checks. ``sagas``: state → sum, of those that have
    placed an order."""

    sagas: Mapping[str, Sum]
    shop: Sum
    topic: Sum
    finance: Sum
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class Notices:
    """The notifications: ``attempts`` → how many were delivered after so many."""

    total: int
    attempts: Mapping[int, int]
    findings: Sequence[Finding]


async def follow_events(channel: Channel, books: Books) -> Told:
    """Wait until all events have got through, and count them where they are. Raises SagaError: they do not."""
    await channel.drain()
    orders, events, bookings = await channel.orders(), await channel.events(), await channel.bookings()
    states = await channel.outbox()
    waiting = {state: count for state, count in states.items() if state not in ("PUBLISHED", "DROPPED")}
    undecided = await channel.undecided()
    return Told(
        sagas={one.state: Sum(one.orders, one.money) for one in books.totals if one.orders},
        shop=Sum.of(orders),
        topic=Sum.of(events),
        finance=Sum.of(bookings),
        findings=(
            _finding(
                "outbox",
                "every event has been published; none is held or refused",
                [f"{count} {state}" for state, count in waiting.items()],
            ),
            _finding(
                "topic",
                "every order that was placed is one event under read_committed, to the cent, and no other is",
                differing(orders, events),
            ),
            _finding("topic", f"nothing in {TOPIC} is undecided", [f"{undecided} records"] if undecided else []),
            _finding(
                "finance",
                "every order event is booked once, to the cent, and nothing else is",
                differing(events, bookings),
            ),
        ),
    )


def differing(left: Sequence[Seen], right: Sequence[Seen]) -> list[str]:
    """The orders that are not equally often on both sides with the same money."""
    one, other = Counter(left), Counter(right)
    return sorted({f"order {seen.order}" for seen in ((one - other) + (other - one))})


async def follow_notices(client: Client, sagas: Iterable[str], arrived: Any) -> Notices:
    """Wait until the notifications of these sagas have been delivered or given up.

    ``arrived`` gives what the receiver has seen, event id → :class:`Arrived`.
    """
    ids = sorted(set(sagas))
    end = time.monotonic() + PATIENCE
    while True:
        stories = await asyncio.gather(*map(client.show, ids))
        rows = {f"{story['id']}/{row['id']}": row for story in stories for row in story["notifications"]}
        if all(row["state"] != "PENDING" for row in rows.values()) or time.monotonic() > end:
            break
        await asyncio.sleep(_PAUSE)
    return judge(rows, arrived())


def judge(rows: Mapping[str, Mapping[str, Any]], arrived: Mapping[str, Arrived]) -> Notices:
    """Hold what the sagas say of their notifications against what has arrived."""
    delivered = {id: row for id, row in rows.items() if row["state"] == "DELIVERED"}
    accepted = {id for id, one in arrived.items() if one.accepted}
    return Notices(
        total=len(rows),
        attempts=Counter(row["attempts"] for row in delivered.values()),
        findings=(
            _finding("notices", "every notification was delivered in the end", sorted(rows.keys() - delivered.keys())),
            _finding(
                "notices",
                "what the web site has accepted, signed by the sagas, is what was delivered",
                sorted(accepted ^ delivered.keys()),
            ),
        ),
    )


def _finding(subject: str, rule: str, wrong: Sequence[str]) -> Finding:
    return Finding(Check(subject, rule, ""), len(wrong), tuple(wrong[:3]))
