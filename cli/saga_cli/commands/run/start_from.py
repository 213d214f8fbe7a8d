"""`saga start --from`: one saga for each row of a file.

All rows are read and checked before anything starts, so a bad row starts nothing. The ids come from the rows, so
running the same command again continues where it was interrupted: existing runs are found, not started twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saga_cli.commands.run.batch_run import RunOptions, parse_tolerated, report_batch, run_batch
from saga_cli.context import load_settings
from saga_cli.input_files import InvalidRows, file_digest, read_rows
from saga_cli.inputs import InputRow
from saga_cli.output import on_ctrl_c
from saga_cli.own_identity import own_identity
from saga_cli.shared_options import print_target, warn_without_poller
from sagas.errors import UsageError
from sagas.text.shortening import counted

if TYPE_CHECKING:
    from saga_workers.start.row_starts import StartRow
    from saga_workers.start.saga_starter import SagaStarter
    from saga_workers.start.tally import Tally

_CHECKED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of `saga start --from`."""

    file: Path
    batch: str | None
    rate: float | None
    concurrency: int | None
    tolerate: str | None
    detach: bool
    again: bool
    bulk: bool
    bulk_size: int | None


def start_many(name: str, options: FileOptions) -> int:
    """Start them, and report how they ended. Raises UsageError: the file, a row or an option is wrong."""
    tallies: list[Tally] = []
    with on_ctrl_c(lambda: _interrupted(tallies)):
        return _start_many(name, options, tallies)


def _start_many(name: str, options: FileOptions, tallies: list[Tally]) -> int:
    from saga_workers.batch.reporter import check_batch_id
    from saga_workers.client import Client
    from sagas.project import Project

    if options.batch is not None:
        check_batch_id(options.batch)
    settings = load_settings()
    project = Project(settings)
    rows, mistakes = read_rows(options.file, project.definition(name).input)
    tolerated = parse_tolerated(options.tolerate, len(rows))
    batch = options.batch or file_digest(options.file)
    run_options = RunOptions(
        batch,
        options.bulk,
        options.bulk_size,
        options.rate,
        options.concurrency,
        tolerated,
        options.detach,
        options.again,
    )

    if not rows and not mistakes:
        from saga_workers.start.tally import Tally

        return report_batch(Tally(0), run_options)

    async def run() -> Tally:
        async with await Client.connect(project, identity=own_identity()) as client:
            orders = await make_start_rows(await client.starter(name), rows, mistakes, batch)
            print_target(settings)
            await warn_without_poller(client)
            return await run_batch(client, name, orders, run_options, tallies)

    return report_batch(asyncio.run(run()), run_options)


def _interrupted(tallies: Sequence[Tally]) -> str:
    """The message for a Ctrl-C before anything was started, and for a second one."""
    if not tallies or not tallies[0].processed:
        return "interrupted: nothing was started"
    tally = tallies[0]
    return (
        f"interrupted: {counted(tally.started, 'saga was started and is', 'sagas were started and are')} "
        f"running, {counted(tally.not_started, 'row is', 'rows are')} not started or"
        " unknown; run the same command again to continue"
    )


async def make_start_rows(
    starter: SagaStarter, rows: Sequence[InputRow], errors: Sequence[str], prefix: str
) -> list[StartRow]:
    """Check every row. Raises InvalidRows with file and line of the mistakes; two rows with one id are one."""
    from saga_workers.start.row_starts import StartRow
    from sagas.definition.saga_ids import check_saga_id

    messages = list(errors)
    orders: list[StartRow] = []
    places: dict[str, str] = {}
    for count, row in enumerate(rows):
        if count % _CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)  # a file may have a million rows, and Ctrl-C is heard between two turns of the loop
        try:
            request = await starter.check(row.value)
            id = check_saga_id(request.id or f"{prefix}-{row.number}")
        except UsageError as error:
            messages.append(f"{row.location}: {error.message}")
            continue
        if id in places:
            messages.append(f"{row.location}: the id {id} is also that of {places[id]}")
            continue
        places[id] = row.location
        orders.append(StartRow(row.location, id, request))
    if messages:
        raise InvalidRows(messages)
    return orders
