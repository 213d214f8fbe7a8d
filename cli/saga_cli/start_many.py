"""`saga start --from`: one saga for each row of a file.

All rows are read and checked before anything starts, so a bad row starts nothing. The ids come from the rows, so
running the same command again goes on where it was interrupted: what is there is found, not started twice.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saga_cli.context import load_settings
from saga_cli.interrupts import INTERRUPTED, on_ctrl_c
from saga_cli.output import print_document, say, warn
from saga_cli.people import name_target, warn_if_nobody_polls
from saga_cli.rows import BadRows, Row, file_digest, read_rows
from sagas.errors import UsageError

if TYPE_CHECKING:
    from saga_workers.bulk import Order, Tally
    from saga_workers.starting import Starter

_CHECKED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Many:
    """The options of `saga start --from`."""

    file: Path
    batch: str | None
    rate: float | None
    concurrency: int
    tolerate: str | None
    detach: bool
    again: bool


def start_many(name: str, options: Many) -> int:
    """Start them, and tell how they ended. Raises UsageError: the file, a row or an option is wrong."""
    tallies: list[Tally] = []
    with on_ctrl_c(lambda: _interrupted(tallies)):
        return _start_many(name, options, tallies)


def _start_many(name: str, options: Many, tallies: list[Tally]) -> int:
    from saga_workers.bulk import Limits, Tally, start_all
    from saga_workers.client import Client
    from sagas.project import Project

    settings = load_settings()
    project = Project(settings)
    rows, mistakes = read_rows(options.file, project.definition(name).input)
    tolerated = parse_tolerance(options.tolerate, len(rows))

    async def run() -> Tally:
        client = await Client.connect(project)
        starter = await client.starter(name)
        orders = await make_orders(starter, rows, mistakes, options.batch or file_digest(options.file))
        name_target(settings)
        await warn_if_nobody_polls(client)
        tally = Tally(len(orders))
        tallies.append(tally)
        with stop_on_ctrl_c() as stop, progress_bar(name, len(orders), follow=not options.detach) as progress:
            await start_all(
                client.temporal,
                starter,
                orders,
                tally,
                Limits(options.rate, options.concurrency, tolerated),
                follow=not options.detach,
                again=options.again,
                labels={"batch": options.batch} if options.batch else None,
                stop=stop,
                progress=progress,
            )
        return tally

    tally = asyncio.run(run())
    print_document(_document(tally), human=lambda: _tell(tally))
    _how_to_go_on(tally)
    return _exit_code(tally, tolerated or 0)


def _interrupted(tallies: Sequence[Tally]) -> str:
    """For a Ctrl-C before there was anything to stop in order, and for a second one."""
    if not tallies or not tallies[0].looked_at:
        return "interrupted: nothing was started"
    tally = tallies[0]
    return (
        f"interrupted: {tally.started} sagas were started and go on, {tally.not_started} rows are not started or not"
        " known to be; run the same command again to go on"
    )


async def make_orders(starter: Starter, rows: Sequence[Row], mistakes: Sequence[str], prefix: str) -> list[Order]:
    """Check every row. Raises BadRows with file and line of the mistakes; two rows with one id are one."""
    from saga_workers.bulk import Order

    found = list(mistakes)
    orders: list[Order] = []
    places: dict[str, str] = {}
    for count, row in enumerate(rows):
        if count % _CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)  # a file may have a million rows, and Ctrl-C is heard between two turns of the loop
        try:
            request = starter.check(row.value)
        except UsageError as error:
            found.append(f"{row.place}: {error.message}")
            continue
        id = request.id or f"{prefix}-{row.number}"
        if id in places:
            found.append(f"{row.place}: the id {id} was already that of {places[id]}")
            continue
        places[id] = row.place
        orders.append(Order(row.place, id, request))
    if found:
        raise BadRows(found)
    return orders


def parse_tolerance(text: str | None, total: int) -> int | None:
    """`1%` of ``total``, or a number. Raises UsageError: neither."""
    if text is None:
        return None
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not math.isfinite(value) or value < 0 or (text.strip().endswith("%") and value > 100):
        raise UsageError(f"--tolerate takes a share like 1% or a number like 20, not {text}")
    return int(total * value / 100) if text.strip().endswith("%") else int(value)


@contextmanager
def stop_on_ctrl_c() -> Iterator[asyncio.Event]:
    """The event is set by the first Ctrl-C; the second one ends the program as ever."""
    stop = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals go to the main thread
        return
    loop = asyncio.get_running_loop()

    def first() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, first)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def progress_bar(name: str, total: int, *, follow: bool) -> Iterator[Any]:
    """Gives the function that shows a tally; a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from saga_cli.output import console

    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total, now="")

        def show(tally: Tally) -> None:
            done = sum(tally.ended.values()) + tally.refused if follow else tally.looked_at
            bar.update(task, completed=done, now=_ends(tally))

        yield show


def _ends(tally: Tally) -> str:
    parts = [f"{count} {state}" for state, count in sorted(tally.ended.items())]
    return ", ".join(parts + ([f"{tally.there} already there"] if tally.there else []))


def _document(tally: Tally) -> dict[str, Any]:
    return {**asdict(tally), "running": tally.running, "not_started": tally.not_started}


def _tell(tally: Tally) -> None:
    """Both lines add up to all rows."""
    say(f"{tally.total} rows: {tally.started} started, {tally.there} already there, {tally.refused} refused")
    now = [f"{count} {state}" for state, count in sorted(tally.ended.items())]
    rest = {"running": tally.running, "refused": tally.refused, "not started": tally.not_started}
    say("  now: " + ", ".join(now + [f"{count} {what}" for what, count in rest.items() if count]))


def _how_to_go_on(tally: Tally) -> None:
    for trouble in tally.troubles[:10]:
        warn(trouble)
    if len(tally.troubles) > 10:
        warn(f"… and {len(tally.troubles) - 10} more that were refused")
    left = tally.not_started
    if tally.stopped == "asked":
        warn(
            f"stopped: {tally.started} sagas were started and go on, {left} rows are not started. Run the same command"
            " again to go on."
        )
    elif tally.stopped == "failures":
        warn(
            f"paused: {tally.failures} have failed, more than was tolerated; {left} rows are not started. Look at "
            "`saga list`, then run the same command again, with --again for those that were undone or with a higher "
            "--tolerate."
        )
    if tally.ended.get("PARKED"):
        warn("some wait for a person: `saga parked` shows them")


def _exit_code(tally: Tally, tolerated: int) -> int:
    """The same for a first run and for a repeat: it tells how the rows have ended."""
    if tally.stopped == "asked":
        return INTERRUPTED
    if tally.failures > tolerated:
        return 1
    return 4 if tally.ended.get("PARKED") else 0
