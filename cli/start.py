"""`saga start`: start one saga, or one for each row of a file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.context import load_settings
from cli.output import print_document, say


def start(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    input: Annotated[str | None, typer.Option(help="the input: JSON, @file, or - for standard input")] = None,
    set: Annotated[list[str] | None, typer.Option(help="one field of the input: key=value; repeatable")] = None,
    id: Annotated[str | None, typer.Option(help="the saga's id; default: from the definition")] = None,
    again: Annotated[bool, typer.Option("--again", help="start anew what was undone, as a new generation")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end; the exit code tells how it ended")] = False,
    timeout: Annotated[str | None, typer.Option(help="how long to wait, for example 1m")] = None,
) -> int:
    """Start a saga. The id decides: a second start of the same id finds the first run."""
    import asyncio

    from cli.inputs import read_input
    from cli.waiting import wait_and_print
    from sagas.project import Project
    from workers.client import Client

    value = read_input(input, set or [])

    async def run() -> int:
        client = await Client.connect(Project(load_settings()))
        begun = await client.start(name, value, id=id, again=again)
        document: dict[str, Any] = {
            "id": begun.id,
            "run_id": begun.run_id,
            "web_ui": begun.web_ui,
            "started": begun.started,
        }
        if not wait:
            print_document(document, human=lambda: _tell(document))
            return 0
        return await wait_and_print(client, begun.id, timeout)

    return asyncio.run(run())


def _tell(document: dict[str, Any]) -> None:
    say(f"{'started' if document['started'] else 'already there:'} {document['id']}")
    if document["web_ui"]:
        say(document["web_ui"])
