"""`saga notify`: how the notifications of a saga stand, and sending one again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import target, with_client
from saga_cli.output import print_document, say
from sagas.errors import RefusedError

if TYPE_CHECKING:
    from temporalio.client import Client

    from sagas.settings import Settings


def notify(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    name: Annotated[str | None, typer.Argument(help="one of its notifications, as `saga show` names it")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="send it again; without a name all that were given up")
    ] = False,
) -> int:
    """Show what became of a saga's notifications; with --again send them again, under the same event id."""

    async def tell(client: Client, settings: Settings) -> list[dict[str, Any]]:
        from saga_workers.notifications import named, send_again
        from saga_workers.stories import read_story

        story = await read_story(client, saga_id)
        if again:
            say(target(settings))
            return await send_again(client, story, name)
        return named(story, name)

    rows = with_client(tell)
    print_document(rows, human=lambda: _print(saga_id, rows))
    return RefusedError.exit_code if any("failure" in row for row in rows) else 0


def _print(saga_id: str, rows: Sequence[dict[str, Any]]) -> None:
    from saga_cli.story_notifications import notification_line
    from saga_cli.story_words import plain

    if not rows:
        say(f"{saga_id} has notified nobody")
    for row in rows:
        done = ": ".join(row[name] for name in ("id", "done", "failure") if name in row)
        say(done if "done" in row else plain(notification_line(row, datetime.now(UTC))))
