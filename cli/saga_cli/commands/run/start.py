"""`saga start`: start one saga, or one for each row of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.output import echo, on_ctrl_c, print_document, warn
from saga_cli.own_identity import own_identity
from saga_cli.shared_options import print_target, warn_without_poller
from sagas.errors import UsageError
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.client import SagaHandle


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
    batch: Annotated[
        str | None, typer.Option(help="with --from: the id of the batch, and the label `batch` of all its sagas")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="with --from: maximum starts per second", min=0.001)] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="with --from: maximum sagas running at once; default: 50, with --bulk 2000", min=1),
    ] = None,
    tolerate: Annotated[
        str | None, typer.Option(help="with --from: stop above this number of failures, 1% or 20")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="with --from: start the sagas and do not wait")] = False,
    bulk: Annotated[
        bool, typer.Option("--bulk", help="with --from: many sagas in one workflow; needs a ledger")
    ] = False,
    bulk_size: Annotated[
        int | None, typer.Option(help="with --bulk: maximum sagas of one workflow; default: 500", min=1, max=2000)
    ] = None,
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

        if bulk_size is not None and not bulk:
            raise UsageError("--bulk-size needs --bulk")
        from saga_cli.commands.run.start_from import FileOptions, start_many

        return start_many(name, FileOptions(from_, batch, rate, concurrency, tolerate, detach, again, bulk, bulk_size))
    if any((batch is not None, rate is not None, concurrency, tolerate is not None, detach, bulk, bulk_size)):
        raise UsageError(
            "--batch, --rate, --concurrency, --tolerate, --detach, --bulk and --bulk-size need --from",
            help="saga start --help",
        )
    return _start_one(name, input, set or [], id, again, wait, timeout)


def _start_one(
    name: str, input: str | None, fields: list[str], id: str | None, again: bool, wait: bool, timeout: str | None
) -> int:
    import asyncio

    from saga_cli.exit_codes import exit_code
    from saga_cli.input_columns import misspelled_fields
    from saga_cli.inputs import read_input
    from saga_cli.wait import parse_deadline, print_end, wait_for_end
    from saga_workers.client import Client
    from sagas.project import Project

    settings = load_settings()
    project = Project(settings)
    definition = project.definition(name)  # a wrong name is reported before the server is queried
    value = read_input(input, fields, definition.input)
    warn(*misspelled_fields(value, definition.input))
    parse_deadline(timeout)
    progress = ["interrupted: nothing was started"]

    async def run() -> int:
        async with await Client.connect(project, identity=own_identity()) as client:
            print_target(settings)
            progress.append(
                f"interrupted: the saga may have been started; check with `{saga_command('list', saga=name)}`"
            )
            started = await client.start(name, value, id=id, again=again)
            progress.append(f"{started.id} is still running; follow it with `{saga_command('watch', started.id)}`")
            warned = started.source is None and await warn_without_poller(client)
            if not wait:
                document = _started_json(started)
                print_document(document, human=lambda: _print_started(started))
                return 0
            if not started.started:
                warn(_existing_text(started.id, started.source, is_compared=started.is_compared))
            view = await wait_for_end(client, started.id, timeout, warned=warned)
            print_end(started.id, view)
            return exit_code(view)

    with on_ctrl_c(lambda: progress[-1]):
        return asyncio.run(run())


def _started_json(run: SagaHandle) -> dict[str, Any]:
    document = {"id": run.id, "run_id": run.run_id, "web_ui": run.web_ui, "started": run.started}
    return document if run.source is None else {**document, "source": run.source}


def _existing_text(saga_id: str, source: str | None, *, is_compared: bool) -> str:
    """The start of another input would have been refused, if that is known."""
    if not is_compared:
        return f"already exists: {saga_id}; its input is forgotten, and was not compared; nothing was started"
    where = ", from the ledger, because Temporal has no run of it" if source is not None else ""
    return f"already exists: {saga_id}, with the same input{where}; nothing was started"


def _print_started(run: SagaHandle) -> None:
    is_compared = run.is_compared
    echo(f"started {run.id}" if run.started else _existing_text(run.id, run.source, is_compared=is_compared))
    if run.web_ui:
        echo(run.web_ui)
