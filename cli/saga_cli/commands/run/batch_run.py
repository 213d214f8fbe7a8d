"""Starts the rows of one batch, shows how far it is, and reports how they have ended."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from saga_cli.exit_codes import DONE, FAILED, INTERRUPTED, PARKED
from saga_cli.input_files import InvalidRows
from saga_cli.output import echo, print_document, warn
from sagas.errors import UsageError
from sagas.text.shell import saga_command
from sagas.text.shortening import counted

if TYPE_CHECKING:
    from saga_workers.batch.batch_control import FailedSaga
    from saga_workers.client import Client
    from saga_workers.start.row_starts import StartRow
    from saga_workers.start.saga_starter import SagaStarter
    from saga_workers.start.start_gate import StartGate
    from saga_workers.start.tally import Tally

_CONCURRENCY = 50
_BULK_WORKFLOWS = 4
"""Bulk workflows at once: one can wait for its database while another computes."""

_LINE_INTERVAL = 30.0
"""Seconds between two lines about the progress, where there is no terminal."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The start of the rows of one batch. ``tolerated``: failures until the starting stops; None for no limit."""

    batch: str
    bulk: bool = False
    bulk_size: int | None = None
    rate: float | None = None
    concurrency: int | None = None
    tolerated: int | None = None
    detach: bool = False
    again: bool = False


async def run_batch(
    client: Client, saga: str, rows: Sequence[StartRow], options: RunOptions, tallies: list[Tally]
) -> Tally:
    """Start the rows of one batch, and report to its record. The tally is also in ``tallies``, as soon as it exists.

    Raises UsageError if ``options`` want bulk execution and there is no ledger.
    """
    from saga_workers.batch.reporter import BatchReporter
    from saga_workers.start.bulk_rows import DEFAULT_BULK_SIZE, BulkRowStarter
    from saga_workers.start.row_starts import RowStarter
    from saga_workers.start.single_rows import SingleRowStarter
    from saga_workers.start.start_gate import StartGate
    from saga_workers.start.start_limits import StartLimits
    from saga_workers.start.tally import Tally

    if options.bulk:
        client.ledger.require()
    starter = await client.starter(saga)
    tally, gate = Tally(len(rows)), StartGate()
    size = options.bulk_size or DEFAULT_BULK_SIZE
    concurrency = options.concurrency or (_BULK_WORKFLOWS * size if options.bulk else _CONCURRENCY)
    limits = StartLimits(options.rate, concurrency, options.tolerated)
    reporter = BatchReporter(
        client.temporal,
        options.batch,
        saga=saga,
        bulk=options.bulk,
        task_queue=client.project.settings.temporal.task_queue,
        attributes=await client.search_attributes(),
        tally=tally,
        gate=gate,
    )
    with stop_on_ctrl_c(gate), shown_tally(saga, tally, gate, follow=not options.detach) as progress:
        async with reporter.reporting(warn):
            tallies.append(tally)
            what: dict[str, Any] = {
                "batch": options.batch,
                "wait_for_end": not options.detach,
                "again": options.again,
                "progress": progress,
            }
            if options.bulk:
                rows_starter: RowStarter = BulkRowStarter(size, starter, tally, limits, gate, **what)
            else:
                rows_starter = SingleRowStarter(starter, tally, limits, gate, **what)
            await rows_starter.start_all(rows)
    return tally


def report_batch(tally: Tally, options: RunOptions) -> int:
    """Print how the rows have ended; returns the exit code."""
    print_document(_summary_json(tally, options.batch), human=lambda: _print_summary(tally, options.batch))
    _print_next_steps(tally, options.batch)
    return _exit_code(tally, options.tolerated or 0)


async def make_again_rows(starter: SagaStarter, sagas: Sequence[FailedSaga]) -> list[StartRow]:
    """The rows of sagas to start again. Raises InvalidRows if an input does not fit the definition any more."""
    from saga_workers.start.row_starts import StartRow

    problems: list[str] = []
    rows: list[StartRow] = []
    for saga in sagas:
        try:
            rows.append(StartRow(saga.id, saga.id, await starter.check(saga.input)))
        except UsageError as error:
            problems.append(f"{saga.id}: {error.message}")
    if problems:
        raise InvalidRows(problems)
    return rows


def parse_tolerated(text: str | None, total: int) -> int | None:
    """`1%` of ``total``, or a number. Raises UsageError: neither."""
    if text is None:
        return None
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not math.isfinite(value) or value < 0 or (text.strip().endswith("%") and value > 100):
        raise UsageError(f"--tolerate takes a percentage like 1% or a number like 20, not {text}")
    return int(total * value / 100) if text.strip().endswith("%") else int(value)


@contextmanager
def stop_on_ctrl_c(gate: StartGate) -> Iterator[None]:
    """The first Ctrl-C stops the starting; the second one ends the program at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    loop = asyncio.get_running_loop()

    def first() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        gate.stop("asked")

    loop.add_signal_handler(signal.SIGINT, first)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def shown_tally(name: str, tally: Tally, gate: StartGate, *, follow: bool) -> Iterator[Callable[[Tally], None]]:
    """Shows the tally: as a bar on a terminal, elsewhere as a line now and then. Gives the function to call when it
    changes. ``follow``: the command waits for the ends of the sagas.
    """
    if not sys.stderr.isatty():
        printing = asyncio.create_task(_print_progress(name, tally, gate, follow=follow))
        try:
            yield lambda _: None
        finally:
            printing.cancel()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from saga_cli.output import make_console

    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=tally.total, now="")

        def show(tally: Tally) -> None:
            now = "paused" if gate.paused else _end_counts(tally)
            bar.update(task, completed=_rows_done(tally, follow=follow), now=now)

        yield show


async def _print_progress(name: str, tally: Tally, gate: StartGate, *, follow: bool) -> None:
    while True:
        await asyncio.sleep(_LINE_INTERVAL)
        now = ["paused"] * gate.paused + [counts for counts in (_end_counts(tally),) if counts]
        counted_rows = f"{_rows_done(tally, follow=follow):,} of {counted(tally.total, 'row')}"
        warn(": ".join([f"{name}: {counted_rows}", *now]))


def _rows_done(tally: Tally, *, follow: bool) -> int:
    return sum(tally.ended.values()) + tally.refused if follow else tally.processed


def _end_counts(tally: Tally) -> str:
    parts = [f"{count} {state}" for state, count in sorted(tally.ended.items())]
    return ", ".join(parts + ([f"{tally.existing} already existed"] if tally.existing else []))


def _summary_json(tally: Tally, batch: str) -> dict[str, Any]:
    return {"batch": batch, **asdict(tally), "running": tally.running, "not_started": tally.not_started}


def _print_summary(tally: Tally, batch: str) -> None:
    """The first two lines add up to all rows."""
    if not tally.total:
        echo("0 rows: the file has none, so nothing was started")
        return
    echo(
        f"{counted(tally.total, 'row')}: {tally.started} started, {tally.existing} "
        f"already existed, {tally.refused} refused"
    )
    now = [f"{count} {state}" for state, count in sorted(tally.ended.items())]
    other_counts = {"running": tally.running, "refused": tally.refused, "not started": tally.not_started}
    echo("  now: " + ", ".join(now + [f"{count} {what}" for what, count in other_counts.items() if count]))
    echo(f"  batch: {batch}")


def _print_next_steps(tally: Tally, batch: str) -> None:
    for message in tally.troubles[:10]:
        warn(message)
    if len(tally.troubles) > 10:
        warn(f"… and {len(tally.troubles) - 10} more refused rows")
    not_started = tally.not_started
    if tally.stopped == "asked":
        warn(
            f"stopped: {counted(tally.started, 'saga was started and is', 'sagas were started and are')} "
            f"running, {counted(not_started, 'row is', 'rows are')} not started; run the"
            " same command again to continue"
        )
    elif tally.stopped == "cancelled":
        warn(f"stopped: somebody has cancelled the batch; {counted(not_started, 'row is', 'rows are')} not started")
    elif tally.stopped == "taken over":
        warn("stopped: another command continues this batch")
    elif tally.stopped == "failures":
        warn(
            f"paused: {counted(tally.failures, 'saga has', 'sagas have')} failed, more than tolerated; "
            f"{counted(not_started, 'row is', 'rows are')} not started;"
            f" check `{saga_command('batch', 'show', batch)}` and run the same command again, with --again to restart"
            " compensated sagas or with a higher --tolerate"
        )
    elif tally.failures or tally.refused:
        warn(f"some rows have failed or were refused; `{saga_command('batch', 'show', batch)}` shows why")
    if tally.ended.get("PARKED"):
        warn("some sagas are parked; list them with `saga parked`")


def _exit_code(tally: Tally, tolerated: int) -> int:
    """The exit code of a batch, equal for a first run and for a repeat: it depends only on how the rows have ended."""
    if tally.stopped == "asked":
        return INTERRUPTED
    if tally.stopped in ("cancelled", "taken over") or tally.failures > tolerated:
        return FAILED
    return PARKED if tally.ended.get("PARKED") else DONE
