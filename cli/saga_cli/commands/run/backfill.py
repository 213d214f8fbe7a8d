"""`saga backfill`: sagas for past times of a schedule, as a batch. A time that has its saga already is left alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.commands.run.batch_run import RunOptions, report_batch, run_batch
from saga_cli.context import load_settings
from saga_cli.exit_codes import DONE
from saga_cli.output import echo, on_ctrl_c, print_list, warn
from saga_cli.own_identity import own_identity
from saga_cli.shared_options import print_target, warn_without_poller
from sagas.errors import UsageError
from sagas.text.printable import printable_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from zoneinfo import ZoneInfo

    from saga_workers.client import Client
    from saga_workers.start.row_starts import StartRow
    from saga_workers.start.tally import Tally

_SIDE_BY_SIDE = 10
"""Sagas that run at once where the schedule allows all."""


def backfill(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    from_: Annotated[str, typer.Option("--from", help="the first time: a date, or a timestamp")],
    to: Annotated[str, typer.Option("--to", help="the last time, included: a date, or a timestamp")],
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="maximum sagas running at once; default 1, with overlap allow_all 10, or 2000 with --bulk", min=1
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="maximum starts per second", min=0.001)] = None,
    detach: Annotated[bool, typer.Option("--detach", help="start the sagas and do not wait")] = False,
    bulk: Annotated[bool, typer.Option("--bulk", help="many sagas in one workflow; needs a ledger")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the times and the ids, and start nothing")] = False,
) -> int:
    """Start a saga for each time of a schedule from --from to --to, in their order; each time has one saga.

    Dates and timestamps without an offset are of the schedule's time zone. A time whose saga exists counts as already
    existing, whoever has started it. The times are those of the definition as it is now; Temporal's schedule need not
    exist. It is a batch: `saga batch` shows, pauses and cancels it.
    """
    from saga_workers.client import Client
    from saga_workers.schedules.matching_times import matching_times
    from saga_workers.schedules.schedule_status import trigger_of
    from sagas.project import Project
    from sagas.schedules.zones import read_zone

    settings = load_settings()
    project = Project(settings)
    definition = project.definition(name)
    trigger = trigger_of(definition)
    zone = read_zone(trigger.timezone)
    first, last = parse_bound(from_, zone, "--from"), parse_bound(to, zone, "--to", end=True)
    now = datetime.now(UTC)
    if last < first:
        skipped = [text for text in (skipped_time(from_, zone, "--from"), skipped_time(to, zone, "--to")) if text]
        raise UsageError(
            "; ".join(["--to is before --from", *skipped]), help="for example --from 2026-03-01 --to 2026-03-31"
        )
    if first > now:
        raise UsageError("--from is in the future, and a backfill starts sagas for past times only")
    side_by_side = trigger.overlap == "allow_all"
    if bulk and concurrency is None and not side_by_side:
        raise UsageError(
            f"--bulk runs many sagas at once, and those of {name} run one after the other (overlap {trigger.overlap})",
            help="--concurrency N says how many may run at once",
        )
    if concurrency is None and not bulk:
        concurrency = _SIDE_BY_SIDE if side_by_side else 1
    options = RunOptions(
        f"backfill-{name}-{first:%Y%m%dT%H%M%SZ}-{last:%Y%m%dT%H%M%SZ}",
        bulk=bulk,
        rate=rate,
        concurrency=concurrency,
        detach=detach,
    )
    tallies: list[Tally] = []

    async def run() -> int:
        async with await Client.connect(project, identity=own_identity()) as client:
            queue = settings.temporal.task_queue
            times = await matching_times(client.temporal, definition, queue, first, min(last, now))
            warn_of_clock_changes(zone, first, min(last, now), times, are_printed=dry_run)
            rows = await _rows(client, name, times)
            if not rows:
                print_list([], human=lambda _: echo(f"the schedule of {name} has no time in this range"))
                return DONE
            if dry_run:
                print_list([{"scheduled_at": row.location, "id": row.id} for row in rows], human=_print_rows)
                return DONE
            print_target(settings)
            await warn_without_poller(client)
            return report_batch(await run_batch(client, name, rows, options, tallies), options)

    with on_ctrl_c(lambda: "interrupted: run the same command again to continue"):
        return asyncio.run(run())


_AFFECTED = 3 * 3600
"""Seconds around a change of the clocks in which Temporal may leave out times, or add some."""


def warn_of_clock_changes(
    zone: ZoneInfo, first: datetime, last: datetime, times: Sequence[datetime], *, are_printed: bool
) -> None:
    """Print at which moments of the range the clocks change, if the schedule has times at that hour on any day."""
    from sagas.protocol.schedule_order import slot_text
    from sagas.schedules.clock_changes import clock_changes
    from sagas.text.shortening import join_names

    seconds = {_second_of_day(scheduled_at, zone) for scheduled_at in times}

    def is_affected(change: datetime) -> bool:
        at = _second_of_day(change, zone)
        distances = (abs(second - at) for second in seconds)
        return not seconds or any(min(distance, 86_400 - distance) <= _AFFECTED for distance in distances)

    changes = [slot_text(change) for change in clock_changes(zone, first, last) if is_affected(change)]
    if changes:
        warn(
            f"the clocks of {printable_line(zone.key)} change in this range, at {join_names(changes, 5)}: Temporal may"
            " leave out times in the hours around it, for this command and for the schedule",
            *([] if are_printed else ["help: --dry-run prints the times"]),
        )


def _second_of_day(moment: datetime, zone: ZoneInfo) -> int:
    local = moment.astimezone(zone)
    return local.hour * 3600 + local.minute * 60 + local.second


async def _rows(client: Client, name: str, times: Sequence[datetime]) -> list[StartRow]:
    """The starts of the times. Raises InvalidRows if the input of one is refused: then nothing is started."""
    from saga_cli.input_files import InvalidRows
    from saga_workers.schedules.slot_request import slot_request
    from saga_workers.start.row_starts import StartRow
    from sagas.protocol.schedule_order import slot_text

    starter = await client.starter(name)
    rows: dict[str, StartRow] = {}
    refused: list[str] = []
    for scheduled_at in times:
        try:
            request, id = await slot_request(starter, client.project.settings.vars, scheduled_at)
        except UsageError as error:
            refused.append(f"{slot_text(scheduled_at)}: {error.message}")
        else:
            rows.setdefault(id, StartRow(slot_text(scheduled_at), id, request, any_input=True))
    if refused:
        raise InvalidRows(refused)
    return list(rows.values())


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        echo(f"{row['scheduled_at']}  {row['id']}")


def skipped_time(text: str, zone: ZoneInfo, option: str) -> str | None:
    """A clause about a local time that the clocks of the zone skip; None for any other valid date or timestamp."""
    parsed = datetime.fromisoformat(text)
    local = parsed.replace(tzinfo=zone)
    counted = local.astimezone(UTC).astimezone(zone)
    if parsed.tzinfo is not None or counted.replace(tzinfo=None) == parsed:
        return None
    in_zone = f"{option} {text} does not exist in {printable_line(zone.key)}"
    return f"{in_zone}: the clocks skip it, and it is {counted:%H:%M}"


def parse_bound(text: str, zone: ZoneInfo, option: str, *, end: bool = False) -> datetime:
    """A date or a timestamp in UTC; of a date its first second, with ``end`` its last one. Raises UsageError.

    A time that clocks repeat is its first occurrence, with ``end`` its last one.
    """
    try:
        if len(text) == len("2026-03-01"):
            day = date.fromisoformat(text) + timedelta(days=int(end))
            return datetime.combine(day, time(), zone).astimezone(UTC) - timedelta(seconds=int(end))
        parsed = datetime.fromisoformat(text)
        if parsed.tzinfo is not None:
            return parsed.astimezone(UTC)
        first, last = (parsed.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        return max(first, last) if end else first
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option}: {printable_line(text[:80])} is neither a date nor a timestamp",
            help=f"for example {option} 2026-03-01, or {option} 2026-03-01T06:00:00Z",
        ) from None
