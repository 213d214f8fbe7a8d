"""`saga notify`: how the notifications of a saga stand, and sending one again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import target_line, with_locator
from saga_cli.exit_codes import DONE, REFUSED
from saga_cli.output import echo, print_document

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.settings import Settings


def notify(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    name: Annotated[str | None, typer.Argument(help="one of its notifications, as `saga show` names it")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="send it again; without a name all that are exhausted")
    ] = False,
) -> int:
    """Show the notifications of a saga; with --again send them again, under the same event id."""

    async def tell(locator: Locator, settings: Settings) -> list[dict[str, Any]]:
        from saga_workers.views.notifications import resend, select_notifications
        from saga_workers.views.saga_view import read_view

        view = await read_view(locator, saga_id)
        if again:
            echo(target_line(settings))
            return await resend(locator.temporal, view, name, queue=settings.temporal.task_queue)
        return [row.to_json() for row in select_notifications(view, name)]

    rows = with_locator(tell)
    print_document(rows, human=lambda: _print_notifications(saga_id, rows))
    return REFUSED if any("failure" in row for row in rows) else DONE


def _print_notifications(saga_id: str, rows: Sequence[dict[str, Any]]) -> None:
    from saga_cli.render.saga_view import notification_line
    from sagas.presentation.styled_text import to_plain
    from sagas.protocol.saga_view import NotificationView

    if not rows:
        echo(f"{saga_id} has no notifications")
    for row in rows:
        done = ": ".join(row[name] for name in ("id", "done", "failure") if name in row)
        echo(done if "done" in row else to_plain(notification_line(NotificationView.from_json(row), datetime.now(UTC))))
