"""`saga batch`: all sagas of one `saga start --from`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import target_line, with_client, with_locator
from saga_cli.exit_codes import DONE, FAILED, REFUSED
from saga_cli.output import confirm, echo, make_console, on_ctrl_c, print_document, print_list, print_table, warn
from saga_cli.own_identity import own_identity
from saga_cli.shared_options import Operator, Yes, operator_name, print_target, warn_without_poller
from sagas.errors import UsageError
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command
from sagas.text.shortening import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.client import Client as Temporal

    from saga_workers.batch.batch_control import CancelReport, FailedSagas
    from saga_workers.batch.batch_view import BatchEntry, BatchView
    from saga_workers.client import Client
    from saga_workers.location.locator import Locator
    from saga_workers.start.tally import Tally
    from sagas.protocol.batch_record import BatchRecord
    from sagas.settings import Settings

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="All sagas of one `saga start --from`, by the batch's id.",
)

BatchId = Annotated[str, typer.Argument(help="the batch's id, as `saga start --from` prints it")]

_BAR_WIDTH = 40


@app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(help="maximum number of batches", min=1, max=1000)] = 20,
) -> int:
    """List the batches whose records Temporal has, the newest first."""

    async def find(client: Temporal, settings: Settings) -> list[BatchEntry]:
        from saga_workers.batch.batch_view import list_batches

        return await list_batches(client, settings.temporal.task_queue, limit)

    entries = with_client(find)
    print_list([entry.to_json() for entry in entries], human=_print_list)
    return 0


def _print_list(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        echo("no batches")
        return
    cells = [
        (row["id"], row["saga"] or "", row["state"], f"{row['total'] - row['rows']['not_started']}/{row['total']}",
         row["opened_at"] or "")
        for row in rows
    ]  # fmt: skip
    print_table(cells, ("batch", "saga", "state", "rows", "opened"))


@app.command("show")
def show_command(batch: BatchId) -> int:
    """Show the counts by state, the rate, and the failures by reason. They may lag behind by a few seconds."""

    async def read(locator: Locator, settings: Settings) -> BatchView:
        from saga_workers.batch.batch_view import read_batch
        from saga_workers.batch.reporter import check_batch_id

        return await read_batch(locator, check_batch_id(batch), settings.temporal.task_queue)

    view = with_locator(read)
    print_document(view.to_json(), human=lambda: _print_batch(view))
    return 0


def _print_batch(view: BatchView) -> None:
    record = view.record
    what = f" of {record.saga}" if record and record.saga else ""
    state = "its record is no longer in Temporal" if record is None else record.state
    by = f" by {record.by}" if record and record.by and record.state in ("PAUSED", "CANCELLED") else ""
    echo(f"{view.id}{what}: {state}{by}")
    if record is not None:
        open_rows = max(0, record.total - record.processed)
        rate = "" if record.rate is None else f", {record.rate:.1f} rows per second"
        echo(
            f"  {counted(record.total, 'row')}: {record.started} started, "
            f"{record.existing} already existed, {record.refused}"
            f" refused, {open_rows} not started{rate}"
        )
        for refusal in record.refusals:
            echo(f"    {printable_line(refusal)}")
        if record.refused > len(record.refusals):
            echo(f"    … and {record.refused - len(record.refusals)} more refused rows")
    _print_bar(view)
    print_table([(count, state) for state, count in sorted(view.sagas.items())], indent=2)
    if view.failures:
        echo("failures, by reason:")
    for group in view.failures:
        where = f" at {group.step}" if group.step else ""
        because = f": {group.message}" if group.message else ""
        echo(f"  {group.count} {group.state} {group.kind}{where}{because} (for example {group.example})")
    failed = view.ended - view.sagas.get("COMPLETED", 0)
    if failed > view.failures_read:
        echo(f"  … of the newest {view.failures_read} of {failed}")


def _print_bar(view: BatchView) -> None:
    """A bar of the sagas that have ended; on a terminal only."""
    if not sys.stdout.isatty() or not view.total:
        return
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=view.total, completed=view.ended, width=_BAR_WIDTH)
    grid.add_row("", bar, f"{view.ended}/{view.total}")
    make_console().print(grid)


@app.command("pause")
def pause_command(batch: BatchId, as_: Operator = None) -> int:
    """Start no more rows of the batch until it is resumed; running sagas go on."""
    return _ask("pause", batch, operator_name(as_))


@app.command("resume")
def resume_command(batch: BatchId, as_: Operator = None) -> int:
    """Go on starting rows of a paused batch."""
    return _ask("resume", batch, operator_name(as_))


def _ask(what: str, batch: str, by: str | None) -> int:
    async def ask(client: Temporal, settings: Settings) -> BatchRecord | None:
        from saga_workers.batch import batch_control
        from saga_workers.batch.reporter import check_batch_id

        print_target(settings)
        do = batch_control.pause if what == "pause" else batch_control.resume
        return await do(client, check_batch_id(batch), by)

    record = with_client(ask)
    state = None if record is None else record.state
    document = {"id": batch, "state": state}
    note = "recorded, but no worker has answered yet" if state is None else state
    print_document(document, human=lambda: echo(f"{batch}: {note}"))
    return 0


@app.command("cancel")
def cancel_command(
    batch: BatchId,
    reason: Annotated[str, typer.Option(help="reason; recorded with each saga")] = "",
    as_: Operator = None,
    yes: Yes = False,
) -> int:
    """Start no more rows of the batch, and cancel each of its sagas that runs.

    Sagas past the point of no return are refused and go on; then the exit code is 9.
    """
    from saga_workers.batch.reporter import check_batch_id

    check_batch_id(batch)
    by = operator_name(as_)
    view = _with_project(_read_view, batch)
    running = sum(view.sagas.values()) - view.ended
    confirm(
        f"this cancels the batch {printable_line(batch)}, of which {counted(running, 'saga runs', 'sagas run')}",
        yes=yes,
    )

    async def cancel(client: Client) -> CancelReport:
        from saga_workers.batch import batch_control

        settings = client.project.settings
        warn(target_line(settings))

        async def cancel_saga(saga_id: str) -> str:
            return await client.cancel(saga_id, reason=reason, who=by)

        queue = settings.temporal.task_queue
        return await batch_control.cancel(client.locator, batch, queue, by, reason, cancel_saga)

    async def work(client: Client, _: str) -> CancelReport:
        return await cancel(client)

    report = _with_project(work, batch)
    document = {"id": batch, "cancelled": report.asked, "refused": report.refused}
    print_document(document, human=lambda: _print_cancelled(report))
    return REFUSED if report.refused else DONE


def _print_cancelled(report: CancelReport) -> None:
    for id, why in list(report.refused.items())[:10]:
        echo(f"{id}: refused: {why}")
    echo(f"{counted(len(report.asked), 'saga')} cancelled, {len(report.refused)} refused")


@app.command("retry-failed")
def retry_failed_command(
    batch: BatchId,
    rate: Annotated[float | None, typer.Option(help="maximum starts per second", min=0.001)] = None,
    concurrency: Annotated[int | None, typer.Option(help="maximum sagas running at once", min=1)] = None,
    detach: Annotated[bool, typer.Option("--detach", help="start the sagas and do not wait")] = False,
) -> int:
    """Start the sagas of the batch that ended COMPENSATED or RESIDUE again, as `saga start --again` does.

    Their inputs are those of the first start; the definitions are those of the project now.
    """
    from saga_cli.commands.run.batch_run import RunOptions, report_batch, run_batch
    from saga_workers.batch.reporter import check_batch_id

    check_batch_id(batch)
    tallies: list[Tally] = []

    async def work(client: Client, batch: str) -> int:
        from saga_cli.commands.run.batch_run import make_again_rows
        from saga_workers.batch.batch_control import failed_sagas

        settings = client.project.settings
        failed = await failed_sagas(client.locator, batch, settings.temporal.task_queue)
        _warn_lost(failed)
        saga = _only_saga(failed, batch)
        if saga is None:
            print_document({"batch": batch, "total": 0}, human=lambda: echo("no saga of the batch has failed"))
            return FAILED if failed.lost else DONE
        rows = await make_again_rows(await client.starter(saga), failed.sagas)
        print_target(settings)
        await warn_without_poller(client)
        bulk = failed.record is not None and failed.record.bulk and client.ledger.configured
        options = RunOptions(batch, bulk=bulk, rate=rate, concurrency=concurrency, detach=detach, again=True)
        code = report_batch(await run_batch(client, saga, rows, options, tallies), options)
        return code or (FAILED if failed.lost else DONE)

    with on_ctrl_c(lambda: "interrupted: run the same command again to continue"):
        return _with_project(work, batch)


def _warn_lost(failed: FailedSagas) -> None:
    if failed.lost:
        shown = ", ".join(failed.lost[:5]) + " …" * (len(failed.lost) > 5)
        warn(
            f"{counted(len(failed.lost), 'saga is', 'sagas are')} not started again, because the ledger has "
            f"only a part of their inputs:"
            f" {shown}",
            "help: start them with saga start --from FILE --again",
        )


def _only_saga(failed: FailedSagas, batch: str) -> str | None:
    names = sorted({saga.saga for saga in failed.sagas})
    if len(names) > 1:
        raise UsageError(
            f"the batch {printable_line(batch)} has sagas of several definitions: {', '.join(names)}",
            help=f"start them one by one with --again; {saga_command('list', label=f'batch={batch}')}    lists them",
        )
    return names[0] if names else None


async def _read_view(client: Client, batch: str) -> BatchView:
    from saga_workers.batch.batch_view import read_batch

    return await read_batch(client.locator, batch, client.project.settings.temporal.task_queue)


def _with_project(work: Any, batch: str) -> Any:
    """Run ``work(client, batch)`` with a client of the project."""
    from saga_cli.context import load_settings
    from saga_workers.client import Client
    from sagas.project import Project

    settings = load_settings()

    async def connected() -> Any:
        async with await Client.connect(Project(settings), identity=own_identity()) as client:
            return await work(client, batch)

    return asyncio.run(connected())
