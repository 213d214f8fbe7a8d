"""`saga parked`: what needs a person, grouped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import with_client
from saga_cli.output import print_list, say, warn

if TYPE_CHECKING:
    from temporalio.client import Client

    from saga_workers.inbox import Inbox
    from sagas.settings import Settings


def parked(
    saga: Annotated[str | None, typer.Option(help="only sagas of this name")] = None,
    since: Annotated[str | None, typer.Option(help="only sagas begun since then: 2h, 7d, or 2026-03-01")] = None,
    label: Annotated[list[str] | None, typer.Option("-l", "--label", help="name=value; repeatable")] = None,
    all_: Annotated[bool, typer.Option("--all", help="also ask sagas whose other branches still run")] = False,
) -> int:
    """Show what waits for a person, one group for each saga, step, operation and error, with the command for it."""
    from saga_cli.filters import wanted

    async def find(client: Client, settings: Settings) -> Inbox:
        from saga_workers.inbox import read_inbox

        return await read_inbox(
            client, wanted(settings, saga=saga, since=since, labels=label or ()), every=all_, nested=True
        )

    from saga_workers.inbox import grouped

    inbox = with_client(find)
    groups = grouped(inbox.waiting)
    print_list(groups, human=lambda rows: _print(rows))
    if inbox.unasked:
        why = next(iter(inbox.unasked.values()))
        warn(f"{len(inbox.unasked)} sagas in trouble could not be asked: {why}")
    return 0


def _print(groups: Any) -> None:
    from saga_cli.story_words import length, moment

    if not groups:
        say("nothing waits for a person")
        return
    now = datetime.now(UTC)
    for group in groups:
        oldest = moment(group["oldest"])
        age = f", the oldest for {length(now, oldest)}" if oldest else ""
        op = {"do": "", "undo": "the undo of ", "confirm": "the confirm of "}.get(group["op"], "")
        say(f"⏸ {group['count']} × {group['saga']}: {op}{group['step']}{age}")
        say(f"    {group['error']}")
        ids = group["ids"]
        say(f"    {', '.join(ids[:5])}{f' and {len(ids) - 5} more' if len(ids) > 5 else ''}")
        say(f"    possible: {', '.join(group['decisions'])}")
        say(f"    {group['command']}")
