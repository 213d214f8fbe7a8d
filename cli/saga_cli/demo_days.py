"""The second half of `saga demo`: days are closed with Spark, one is undone, and `saga reconcile` proves the books."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from saga_cli import demo_days_report as report
from saga_cli.demo_typing import type_command
from saga_cli.output import say

if TYPE_CHECKING:
    from saga_workers.demo.books import Finding
    from saga_workers.demo.closing import Closing, DayOutcome
    from saga_workers.demo.proof import Look
    from saga_workers.demo.run import Demo

REASON = "A till was counted twice"


@dataclass(slots=True)
class DaysDone:
    """What came of it. ``left_out``: why no day was closed, one sentence; None: they were."""

    left_out: str | None = None
    outcomes: Sequence[DayOutcome] = ()
    findings: Sequence[Finding] = ()
    surprises: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Every day has ended as it had to, and every check holds."""
        return not self.surprises and not any(one.count for one in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "left_out": self.left_out,
            "closed": [
                {"day": str(one.close.sales.day), "role": one.close.role, "id": one.story["id"],
                 "state": one.story["state"]} for one in self.outcomes
            ],
            "checks": [
                {"subject": one.check.subject, "rule": one.check.rule, "wrong": one.count} for one in self.findings
            ],
            "surprises": list(self.surprises),
            "seconds": round(self.seconds, 1),
        }  # fmt: skip


async def close_days(shop: Demo) -> DaysDone:
    """Close the days of the shop, undo one, and reconcile. Where Spark cannot run, it says so and does nothing."""
    from saga_workers.demo.closing import missing, open_closing
    from saga_workers.demo.proof import reconciling

    began = time.monotonic()
    why = missing()
    if why is not None:
        say(f"\nThe days are not closed, because that takes Spark: {why}.")
        return DaysDone(why)
    say("\nmaking the promotions ready, and starting Spark …")
    closing = await open_closing(shop.settings, shop.client, shop.engine, shop.round)
    done = DaysDone()
    if not closing.days.closes:
        done.left_out = "nothing was sold on any day"
        say(f"There is no day to close: {done.left_out}.")
        return done
    say(report.opening(closing))
    outcomes = await closing.run(lambda outcome: say(report.one_day(outcome)))
    before = await closing.check(outcomes)
    done.surprises += _surprises(outcomes)
    async with reconciling(shop.client, shop.settings, shop.opened_at) as look:
        done.outcomes = await _undo_one(closing, outcomes)
        after = await closing.check(done.outcomes)
        done.findings = [*(one for one in before if one.count), *after]
        report.print_books(await closing.lake(), done.outcomes, done.findings)
        await _reconcile(shop, look, done)
    done.seconds = time.monotonic() - began
    return done


# How each day has to end, and which step says no.
_ENDS = {
    "good": ("COMPLETED", None),
    "refused": ("COMPENSATED", "commission"),
    "undone": ("COMPLETED", None),
    "tampered": ("COMPENSATED", "facts"),
}


def _surprises(outcomes: Sequence[DayOutcome]) -> list[str]:
    found: list[str] = []
    for one in outcomes:
        ended = (one.story["state"], (one.story["reason"] or {}).get("step"))
        if ended != _ENDS[one.close.role]:
            found.append(f"{one.story['id']} is {ended[0]}, because of {ended[1] or 'nothing'}")
    return found


async def _undo_one(closing: Closing, outcomes: Sequence[DayOutcome]) -> list[DayOutcome]:
    """Take a published day back with the command that a person would type."""
    done: list[DayOutcome] = []
    for one in outcomes:
        if one.close.role == "undone" and one.story["state"] == "COMPLETED":
            command = ["saga", "undo", one.story["id"], "--reason", REASON, "--yes"]
            say(f"\nFinance wants {one.close.sales.day} open again:\n  $ {shlex.join(command)}")
            await asyncio.to_thread(type_command, command[1:], closing.settings.root)
            one = await closing.look_again(one)
            say(f"  {one.story['id']} is {one.story['state']}: both tables were taken back together.")
        done.append(one)
    return done


async def _reconcile(shop: Demo, look: Look, done: DaysDone) -> None:
    """Once when all is well, and once while an order is missing."""
    from saga_workers.demo.mishap import delete_order, put_back

    since = datetime.fromtimestamp(shop.opened_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    command = f"saga reconcile --since {since}"
    topic = ", the topic" if shop.channel.start is not None else ""
    say(f"\nDo all of the books agree, those of the sagas, the shop{topic}, the stage and the lake?")
    await _look(look, command, done, {})
    deleted = await delete_order(shop.engine)
    try:
        say(f"\nSomebody deletes an order by hand:\n  sql> {deleted.statement};")
        await _look(look, command, done, {"saga_without_effect": 1})
    finally:
        await put_back(shop.engine, deleted)
    say("  The order is put back.")


async def _look(look: Look, command: str, done: DaysDone, expected: Mapping[str, int]) -> None:
    say(f"  $ {command}")
    found = await look()
    report.print_reconciliation(found)
    if found["counts"] != expected:
        done.surprises.append(
            f"`{command}` has found {found['counts'] or 'nothing'} instead of {expected or 'nothing'}"
        )
