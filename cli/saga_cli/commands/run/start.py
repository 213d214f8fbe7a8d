"""`saga start`: start one saga, or one for each row of a file."""

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
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.inputs import InputRow, InvalidRows, file_digest, read_rows
from saga_cli.output import INTERRUPTED, echo, on_ctrl_c, print_document, warn
from saga_cli.shared_options import print_target, warn_without_poller
from sagas.errors import UsageError
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.client import SagaHandle
    from saga_workers.control.bulk_start import StartRow, Tally
    from saga_workers.control.start import SagaStarter


def start(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    input: Annotated[str | None, typer.Option(help="the input: JSON, @file, or - for standard input")] = None,
    set: Annotated[list[str] | None, typer.Option(help="one field of the input: key=value; repeatable")] = None,
    id: Annotated[str | None, typer.Option(help="the saga's id; default: from the definition")] = None,
    again: Annotated[bool, typer.Option("--again", help="start a compensated saga again, as a new generation")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end; the exit code shows how it ended")] = False,
    timeout: Annotated[str | None, typer.Option(help="how long to wait, for example 1m")] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="one saga for each row: .jsonl, .csv or .parquet")
    ] = None,
    batch: Annotated[str | None, typer.Option(help="with --from: the label `batch` of all sagas")] = None,
    rate: Annotated[float | None, typer.Option(help="with --from: maximum starts per second", min=0.001)] = None,
    concurrency: Annotated[int, typer.Option(help="with --from: maximum sagas running at once", min=1)] = 50,
    tolerate: Annotated[
        str | None, typer.Option(help="with --from: stop above this number of failures, 1% or 20")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="with --from: start the sagas and do not wait")] = False,
) -> int:
    """Start a saga. A second start with the same id returns the first run.

    With --from one saga is started for each row of a file; run it again to continue after an interruption.
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait")
    if from_ is not None:
        if input is not None or set or id is not None or wait:
            raise UsageError(
                "--from cannot be used with --input, --set, --id or --wait; inputs and ids come from the rows"
            )

        return start_many(name, BulkOptions(from_, batch, rate, concurrency, tolerate, detach, again))
    if batch is not None or rate is not None or tolerate is not None or detach:
        raise UsageError("--batch, --rate, --tolerate and --detach need --from")
    return _start_one(name, input, set or [], id, again, wait, timeout)


def _start_one(
    name: str, input: str | None, fields: list[str], id: str | None, again: bool, wait: bool, timeout: str | None
) -> int:
    import asyncio

    from saga_cli.inputs import read_input
    from saga_cli.wait import exit_code, parse_deadline, print_end, wait_for_end
    from saga_workers.client import Client
    from sagas.settings.project import Project

    settings = load_settings()
    project = Project(settings)
    definition = project.definition(name)  # a wrong name is reported before the server is queried
    value = read_input(input, fields, definition.input)
    parse_deadline(timeout)
    far = ["interrupted: nothing was started"]

    async def run() -> int:
        async with await Client.connect(project) as client:
            print_target(settings)
            far.append(f"interrupted: the saga may have been started; check with `{saga_command('list', saga=name)}`")
            started = await client.start(name, value, id=id, again=again)
            far.append(f"{started.id} is still running; follow it with `{saga_command('watch', started.id)}`")
            if started.source is None:
                await warn_without_poller(client)
            if not wait:
                document = _started_json(started)
                print_document(document, human=lambda: _print_started(document))
                return 0
            view = await wait_for_end(client, started.id, timeout)
            print_end(started.id, view)
            return exit_code(view)

    with on_ctrl_c(lambda: far[-1]):
        return asyncio.run(run())


def _started_json(run: SagaHandle) -> dict[str, Any]:
    document = {"id": run.id, "run_id": run.run_id, "web_ui": run.web_ui, "started": run.started}
    return document if run.source is None else {**document, "source": run.source}


def _print_started(document: dict[str, Any]) -> None:
    if "source" in document:
        echo(f"already exists: {document['id']}, from the ledger, because Temporal no longer has its run")
        return
    echo(f"{'started' if document['started'] else 'already exists:'} {document['id']}")
    if document["web_ui"]:
        echo(document["web_ui"])


# `saga start --from`: one saga for each row of a file.
#
# All rows are read and checked before anything starts, so a bad row starts nothing. The ids come from the rows, so
# running the same command again continues where it was interrupted: existing runs are found, not started twice.

_CHECKED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The options of `saga start --from`."""

    file: Path
    batch: str | None
    rate: float | None
    concurrency: int
    tolerate: str | None
    detach: bool
    again: bool


def start_many(name: str, options: BulkOptions) -> int:
    """Start them, and report how they ended. Raises UsageError: the file, a row or an option is wrong."""
    tallies: list[Tally] = []
    with on_ctrl_c(lambda: _interrupted(tallies)):
        return _start_many(name, options, tallies)


def _start_many(name: str, options: BulkOptions, tallies: list[Tally]) -> int:
    from saga_workers.client import Client
    from saga_workers.control.bulk_start import StartLimits, Tally, start_all
    from sagas.settings.project import Project

    settings = load_settings()
    project = Project(settings)
    rows, mistakes = read_rows(options.file, project.definition(name).input)
    tolerated = parse_tolerance(options.tolerate, len(rows))

    async def run() -> Tally:
        async with await Client.connect(project) as client:
            starter = await client.starter(name)
            orders = await make_start_rows(starter, rows, mistakes, options.batch or file_digest(options.file))
            print_target(settings)
            await warn_without_poller(client)
            tally = Tally(len(orders))
            tallies.append(tally)
            with stop_on_ctrl_c() as stop, progress_bar(name, len(orders), follow=not options.detach) as progress:
                await start_all(
                    client.temporal,
                    starter,
                    orders,
                    tally,
                    StartLimits(options.rate, options.concurrency, tolerated),
                    wait_for_end=not options.detach,
                    again=options.again,
                    labels={"batch": options.batch} if options.batch else None,
                    stop=stop,
                    progress=progress,
                )
            return tally

    tally = asyncio.run(run())
    print_document(_summary_json(tally), human=lambda: _print_summary(tally))
    _print_next_steps(tally)
    return _exit_code(tally, tolerated or 0)


def _interrupted(tallies: Sequence[Tally]) -> str:
    """For a Ctrl-C before there was anything to stop in order, and for a second one."""
    if not tallies or not tallies[0].processed:
        return "interrupted: nothing was started"
    tally = tallies[0]
    return (
        f"interrupted: {tally.started} sagas were started and are running, {tally.not_started} rows are not started or"
        " unknown; run the same command again to continue"
    )


async def make_start_rows(
    starter: SagaStarter, rows: Sequence[InputRow], errors: Sequence[str], prefix: str
) -> list[StartRow]:
    """Check every row. Raises InvalidRows with file and line of the mistakes; two rows with one id are one."""
    from saga_workers.control.bulk_start import StartRow

    found = list(errors)
    orders: list[StartRow] = []
    places: dict[str, str] = {}
    for count, row in enumerate(rows):
        if count % _CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)  # a file may have a million rows, and Ctrl-C is heard between two turns of the loop
        try:
            request = starter.make_request(row.value)
        except UsageError as error:
            found.append(f"{row.location}: {error.message}")
            continue
        id = request.id or f"{prefix}-{row.number}"
        if id in places:
            found.append(f"{row.location}: the id {id} is also that of {places[id]}")
            continue
        places[id] = row.location
        orders.append(StartRow(row.location, id, request))
    if found:
        raise InvalidRows(found)
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
        raise UsageError(f"--tolerate takes a percentage like 1% or a number like 20, not {text}")
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

    from saga_cli.output import make_console

    columns = (
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total, now="")

        def show(tally: Tally) -> None:
            done = sum(tally.ended.values()) + tally.refused if follow else tally.processed
            bar.update(task, completed=done, now=_end_counts(tally))

        yield show


def _end_counts(tally: Tally) -> str:
    parts = [f"{count} {state}" for state, count in sorted(tally.ended.items())]
    return ", ".join(parts + ([f"{tally.there} already existed"] if tally.there else []))


def _summary_json(tally: Tally) -> dict[str, Any]:
    return {**asdict(tally), "running": tally.running, "not_started": tally.not_started}


def _print_summary(tally: Tally) -> None:
    """Both lines add up to all rows."""
    echo(f"{tally.total} rows: {tally.started} started, {tally.there} already existed, {tally.refused} refused")
    now = [f"{count} {state}" for state, count in sorted(tally.ended.items())]
    rest = {"running": tally.running, "refused": tally.refused, "not started": tally.not_started}
    echo("  now: " + ", ".join(now + [f"{count} {what}" for what, count in rest.items() if count]))


def _print_next_steps(tally: Tally) -> None:
    for message in tally.troubles[:10]:
        warn(message)
    if len(tally.troubles) > 10:
        warn(f"… and {len(tally.troubles) - 10} more refused rows")
    left = tally.not_started
    if tally.stopped == "asked":
        warn(
            f"stopped: {tally.started} sagas were started and are running, {left} rows are not started; run the same"
            " command again to continue"
        )
    elif tally.stopped == "failures":
        warn(
            f"paused: {tally.failures} sagas have failed, more than tolerated; {left} rows are not started; check"
            " `saga list` and run the same command again, with --again to restart compensated sagas or with a higher"
            " --tolerate"
        )
    if tally.ended.get("PARKED"):
        warn("some sagas are parked; list them with `saga parked`")


def _exit_code(tally: Tally, tolerated: int) -> int:
    """The same for a first run and for a repeat: it depends only on how the rows have ended."""
    if tally.stopped == "asked":
        return INTERRUPTED
    if tally.failures > tolerated:
        return 1
    return 4 if tally.ended.get("PARKED") else 0
