"""`saga start`: start one saga, or one for each row of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.interrupts import on_ctrl_c
from saga_cli.output import print_document, say
from saga_cli.people import name_target, warn_if_nobody_polls
from sagas.errors import UsageError

if TYPE_CHECKING:
    from saga_workers.client import Run


def start(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    input: Annotated[str | None, typer.Option(help="the input: JSON, @file, or - for standard input")] = None,
    set: Annotated[list[str] | None, typer.Option(help="one field of the input: key=value; repeatable")] = None,
    id: Annotated[str | None, typer.Option(help="the saga's id; default: from the definition")] = None,
    again: Annotated[bool, typer.Option("--again", help="start anew what was undone, as a new generation")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end; the exit code tells how it ended")] = False,
    timeout: Annotated[str | None, typer.Option(help="how long to wait, for example 1m")] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="one saga for each row: .jsonl, .csv or .parquet")
    ] = None,
    batch: Annotated[str | None, typer.Option(help="with --from: a name for all of them, the label `batch`")] = None,
    rate: Annotated[float | None, typer.Option(help="with --from: so many starts per second", min=0.001)] = None,
    concurrency: Annotated[int, typer.Option(help="with --from: so many run at once", min=1)] = 50,
    tolerate: Annotated[str | None, typer.Option(help="with --from: stop above so many failures, 1% or 20")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="with --from: start only, wait for no end")] = False,
) -> int:
    """Start a saga. The id decides: a second start of the same id finds the first run.

    With --from one for each row of a file; run it again to go on where it was interrupted.
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    if from_ is not None:
        if input is not None or set or id is not None or wait:
            raise UsageError("--from takes inputs and ids from the rows: leave out --input, --set, --id and --wait")
        from saga_cli.start_many import Many, start_many

        return start_many(name, Many(from_, batch, rate, concurrency, tolerate, detach, again))
    if batch is not None or rate is not None or tolerate is not None or detach:
        raise UsageError("--batch, --rate, --tolerate and --detach go with --from")
    return _start_one(name, input, set or [], id, again, wait, timeout)


def _start_one(
    name: str, input: str | None, fields: list[str], id: str | None, again: bool, wait: bool, timeout: str | None
) -> int:
    import asyncio

    from saga_cli.inputs import read_input
    from saga_cli.waiting import deadline_of, exit_code, print_end, wait_for_end
    from saga_workers.client import Client
    from sagas.project import Project

    settings = load_settings()
    project = Project(settings)
    definition = project.definition(name)  # a wrong name is said before a server is asked
    value = read_input(input, fields, definition.input)
    deadline_of(timeout)
    far = ["interrupted: nothing was started"]

    async def run() -> int:
        client = await Client.connect(project)
        name_target(settings)
        far.append(f"interrupted: it may have been started; `saga list --saga {name}` tells")
        started = await client.start(name, value, id=id, again=again)
        far.append(f"{started.id} goes on; `saga watch {started.id}` follows it")
        await warn_if_nobody_polls(client)
        if not wait:
            document = _document(started)
            print_document(document, human=lambda: _tell(document))
            return 0
        story = await wait_for_end(client, started.id, timeout)
        print_end(started.id, story)
        return exit_code(story)

    with on_ctrl_c(lambda: far[-1]):
        return asyncio.run(run())


def _document(run: Run) -> dict[str, Any]:
    return {"id": run.id, "run_id": run.run_id, "web_ui": run.web_ui, "started": run.started}


def _tell(document: dict[str, Any]) -> None:
    say(f"{'started' if document['started'] else 'already there:'} {document['id']}")
    if document["web_ui"]:
        say(document["web_ui"])
