"""`saga demo`: real baskets through the whole engine, one stuck and helped on, what leaves the shop followed, the days
closed, the books checked."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import global_options
from saga_cli.output import echo, make_console, print_document, wants_json
from sagas.errors import SagaError
from sagas.protocol.saga_view import SagaView
from sagas.settings.python_processes import python_command
from sagas.text.shell import saga_command, shell_command

from . import report
from .day_close import DaysReport
from .messages import report_messages

if TYPE_CHECKING:
    from .day_close import DayClosing, DayOutcome
    from .scenario import BasketOutcome, Demo, OnEnd


RETRY_REASON = "A lorry was hired"


def demo(
    baskets: Annotated[int, typer.Option("--baskets", "-n", min=1, help="number of real baskets to run")] = 200,
) -> int:
    """Run real shopping baskets as sagas, follow their events, close their days with Spark, and reconcile.

    The stack keeps running afterwards.
    """
    return asyncio.run(_demo(baskets))


async def _demo(baskets: int) -> int:
    from .scenario import open_demo

    began = time.monotonic()
    shop = await open_demo(baskets, echo, global_options().config)
    try:
        opened = time.monotonic()
        echo(*report.describe_shop(shop).splitlines())
        with _ProgressBar(len(shop.plan.orders)) as progress:
            outcomes = await shop.run(progress.on_end)
        ran = time.monotonic() - opened
        before = await shop.check(outcomes)
        report.print_accounts(before, outcomes)

        parked = [outcome for outcome in outcomes if outcome.view.state == "PARKED"]
        outcomes = await _resolve_one(shop, outcomes)
        after = await shop.check(outcomes)
        report.print_verdict(before, after)
        messages = await report_messages(shop, outcomes, parked, after)
        days = await close_days(shop)
        checks = (before, after, await shop.check(outcomes))
        report.print_days(days, checks[-1])
    finally:
        await shop.close()
    document = report.document(shop, outcomes, checks, messages, days, seconds=time.monotonic() - began)
    print_document(document, human=lambda: report.print_farewell(shop, outcomes, days, ran, time.monotonic() - began))
    return 0 if document["balanced"] else 1


async def _resolve_one(shop: Demo, outcomes: list[BasketOutcome]) -> list[BasketOutcome]:
    """Show what is parked, and help the first one on with the command that a person would type."""
    stuck = [outcome for outcome in outcomes if outcome.view.state == "PARKED"]
    if not stuck:
        echo("", "Nothing is parked: every order found a carrier.")
        return outcomes
    report.print_parked(stuck)
    first = stuck[0]
    echo("", "The warehouse hires a lorry, and an operator retries the step:")
    echo(f"  sql> {await shop.hire_lorry()};")
    command = [
        "saga",
        "resolve",
        first.view.id,
        first.view.parked[0].step,
        "retry",
        "--reason",
        RETRY_REASON,
    ]
    echo(f"  $ {shell_command(*command)}")
    await asyncio.to_thread(run_saga_command, command[1:], shop.settings.root)
    helped = await shop.wait_again(first)
    echo(f"  {helped.view.id} is {helped.view.state}.")
    if len(stuck) > 1:
        echo("  The others are still parked: `saga parked` prints the commands.")
    return [helped if outcome is first else outcome for outcome in outcomes]


class _ProgressBar:
    """A bar on a terminal; a line now and then anywhere else."""

    MAX_LINES = 5

    def __init__(self, total: int) -> None:
        self.total = total
        self.states: Counter[str] = Counter()
        self._advance: Callable[[], None] = self._print_some
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> _ProgressBar:
        screen = make_console(stderr=wants_json())
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
        def count(order: object, view: SagaView) -> None:
            self.states[view.state] += 1
            self._advance()

        return count

    def _print_some(self) -> None:
        done = self.states.total()
        if done == self.total or done % max(1, self.total // self.MAX_LINES) == 0:
            echo(f"  {done} of {self.total}: {self._text()}")

    def _text(self) -> str:
        return ", ".join(f"{count} {state}" for state, count in self.states.most_common())


UNDO_REASON = "A till was counted twice"


async def close_days(shop: Demo) -> DaysReport:
    """Close the days of the shop, undo one, and reconcile. Where Spark cannot run, it says so and does nothing."""
    from .day_close import open_closing, spark_unavailable_reason

    began = time.monotonic()
    why = spark_unavailable_reason()
    if why is not None:
        echo("", f"The days are not closed, because Spark is not available: {why}.")
        return DaysReport(why)
    echo("", "preparing the promotions and starting Spark …")
    closing = await open_closing(shop.settings, shop.client, shop.engine, shop.round)
    done = DaysReport()
    if not closing.days.closes:
        done.left_out = "nothing was sold on any day"
        echo(f"There is no day to close: {done.left_out}.")
        return done
    echo(*report.describe_days(closing).splitlines())
    outcomes = await closing.run(lambda outcome: echo(*report.describe_day(outcome).splitlines()))
    before = await closing.check(outcomes)
    done.surprises += _unexpected_ends(outcomes)
    done.outcomes = await _undo_one(closing, outcomes)
    after = await closing.check(done.outcomes)
    done.findings = [*(finding for finding in before if finding.count), *after]
    report.print_lake(await closing.lake(), done.outcomes, done.findings)
    await _reconcile_twice(shop, done)
    done.seconds = time.monotonic() - began
    return done


# How each day has to end, and which step rejects.
_EXPECTED_ENDS = {
    "good": ("COMPLETED", None),
    "refused": ("COMPENSATED", "commission"),
    "undone": ("COMPLETED", None),
    "tampered": ("COMPENSATED", "facts"),
}


def _unexpected_ends(outcomes: Sequence[DayOutcome]) -> list[str]:
    problems: list[str] = []
    for outcome in outcomes:
        ended = (outcome.view.state, outcome.view.reason and outcome.view.reason.step)
        if ended != _EXPECTED_ENDS[outcome.close.role]:
            problems.append(f"{outcome.view.id} is {ended[0]}, with the failed step {ended[1] or '-'}")
    return problems


async def _undo_one(closing: DayClosing, outcomes: Sequence[DayOutcome]) -> list[DayOutcome]:
    """Take a published day back with the command that a person would type."""
    done: list[DayOutcome] = []
    for outcome in outcomes:
        if outcome.close.role == "undone" and outcome.view.state == "COMPLETED":
            command = ["saga", "undo", outcome.view.id, "--reason", UNDO_REASON, "--yes"]
            echo("", f"Finance reopens {outcome.close.sales.day}:", f"  $ {shell_command(*command)}")
            await asyncio.to_thread(run_saga_command, command[1:], closing.settings.root)
            outcome = await closing.refresh(outcome)
            echo(f"  {outcome.view.id} is {outcome.view.state}: both tables were reverted together.")
        done.append(outcome)
    return done


async def _reconcile_twice(shop: Demo, done: DaysReport) -> None:
    """Once when all is well, and once while an order is missing.

    Only what this demo has done: an earlier demo's effects are gone, because the shop opens again; its sagas would all
    miss them.
    """
    from .reconciliation import delete_order, restore_order

    since = datetime.fromtimestamp(shop.opened_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    command = saga_command("reconcile", since=since)
    topic = ", the topic" if shop.channel.start is not None else ""
    echo("", f"Reconcile the sagas with the shop{topic}, the stage and the lake:")
    await _reconcile_once(shop, command, done, {})
    deleted = await delete_order(shop.engine)
    try:
        echo("", "An order is deleted by hand:", f"  sql> {deleted.statement};")
        await _reconcile_once(shop, command, done, {"saga_without_effect": 1})
    finally:
        await restore_order(shop.engine, deleted)
    echo("  The order is restored.")


async def _reconcile_once(shop: Demo, command: str, done: DaysReport, expected: Mapping[str, int]) -> None:
    from saga_spark.reconcile.extracts import ReconciliationScope
    from saga_workers.reconcile.reconciliation import reconcile

    echo(f"  $ {command}")
    reconciliation = await reconcile(shop.client.locator, shop.settings, ReconciliationScope(shop.opened_at))
    report.print_reconciliation(reconciliation)
    if reconciliation["counts"] != expected:
        done.surprises.append(
            f"`{command}` found {reconciliation['counts'] or 'nothing'} instead of {expected or 'nothing'}"
        )


def run_saga_command(words: Sequence[str], folder: Path) -> None:
    """Run `saga` with these words in the demo's folder. Raises SagaError with what it said when it fails."""
    argv = python_command("saga_cli.main", *words)
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise SagaError(f"`{shell_command('saga', *words)}` failed: {message}")
