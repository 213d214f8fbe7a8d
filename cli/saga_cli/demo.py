"""`saga demo`: real baskets through the whole engine, one stuck and helped on, what leaves the shop followed, the days
closed, the books checked."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli import demo_report as report
from saga_cli.context import options
from saga_cli.demo_days import close_days
from saga_cli.demo_messages import follow_messages
from saga_cli.demo_typing import type_command
from saga_cli.output import console, print_document, say, wants_json

if TYPE_CHECKING:
    from saga_workers.demo.run import Demo, OnEnd, Outcome

REASON = "A lorry was hired"


def demo(
    baskets: Annotated[int, typer.Option("--baskets", "-n", min=1, help="how many real baskets to run")] = 200,
) -> int:
    """Run real shopping baskets as sagas, follow their events, close their days with Spark, and check the books.

    The stack goes on running afterwards.
    """
    return asyncio.run(_demo(baskets))


async def _demo(baskets: int) -> int:
    from saga_workers.demo.run import open_demo

    began = time.monotonic()
    shop = await open_demo(baskets, say, options().config)
    try:
        opened = time.monotonic()
        say(report.opening(shop))
        with _Progress(len(shop.plan.orders)) as progress:
            outcomes = await shop.run(progress.on_end)
        ran = time.monotonic() - opened
        before = await shop.check(outcomes)
        report.print_books(before, outcomes)

        parked = [outcome for outcome in outcomes if outcome.story["state"] == "PARKED"]
        outcomes = await _help_one(shop, outcomes)
        after = await shop.check(outcomes)
        report.print_verdict(before, after)
        messages = await follow_messages(shop, outcomes, parked, after)
        days = await close_days(shop)
        looks = (before, after, await shop.check(outcomes))
        report.print_days(days, looks[-1])
    finally:
        await shop.close()
    document = report.document(shop, outcomes, looks, messages, days, seconds=time.monotonic() - began)
    print_document(document, human=lambda: report.print_farewell(shop, outcomes, days, ran, time.monotonic() - began))
    return 0 if document["balanced"] else 1


async def _help_one(shop: Demo, outcomes: list[Outcome]) -> list[Outcome]:
    """Show what is parked, and help the first one on with the command that a person would type."""
    stuck = [outcome for outcome in outcomes if outcome.story["state"] == "PARKED"]
    if not stuck:
        say("\nNothing is parked: every order found a carrier.")
        return outcomes
    report.print_parked(stuck)
    first = stuck[0]
    say("\nThe warehouse hires a lorry, and somebody says so:")
    say(f"  sql> {await shop.hire_lorry()};")
    command = ["saga", "resolve", first.story["id"], first.story["parked"][0]["step"], "retry", "--reason", REASON]
    say(f"  $ {shlex.join(command)}")
    await asyncio.to_thread(type_command, command[1:], shop.settings.root)
    helped = await shop.follow(first)
    say(f"  {helped.story['id']} is {helped.story['state']}.")
    if len(stuck) > 1:
        say("  The others are left to you: `saga parked` shows what to type.")
    return [helped if outcome is first else outcome for outcome in outcomes]


class _Progress:
    """A bar on a terminal; a line now and then anywhere else."""

    LINES = 5

    def __init__(self, total: int) -> None:
        self.total = total
        self.states: Counter[str] = Counter()
        self._advance: Callable[[], None] = self._say_now_and_then
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> _Progress:
        screen = console(stderr=wants_json())
        if screen.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            bar = Progress(
                BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=screen
            )
            task = bar.add_task("", total=self.total)
            self._advance = lambda: bar.update(task, advance=1, description=self._text())
            bar.start()
            self._stop = bar.stop
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def on_end(self) -> OnEnd:
        def told(order: object, story: object) -> None:
            assert isinstance(story, dict)
            self.states[story["state"]] += 1
            self._advance()

        return told

    def _say_now_and_then(self) -> None:
        done = self.states.total()
        if done == self.total or done % max(1, self.total // self.LINES) == 0:
            say(f"  {done} of {self.total}: {self._text()}")

    def _text(self) -> str:
        return ", ".join(f"{count} {state}" for state, count in self.states.most_common())
