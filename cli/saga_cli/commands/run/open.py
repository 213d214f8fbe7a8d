"""`saga open`: the saga in the Temporal Web UI."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import with_locator
from saga_cli.output import echo, print_document
from sagas.errors import RefusedError, UsageError
from sagas.protocol.saga_view import FINAL_STATES
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.settings import Settings


def open_saga(saga_id: Annotated[str, typer.Argument(help="the saga's id")]) -> int:
    """Print the link to a saga, and open it in a browser if possible."""
    from saga_workers.views.run_facts import web_ui_link
    from saga_workers.views.saga_view import read_view

    async def find(locator: Locator, settings: Settings) -> str | None:
        location = await locator.locate(saga_id)
        run = (location.run if location.member is None else location.member.bulk) or location.undo
        if run is None:
            view = await read_view(locator, location.saga_id)  # the ledger may know it; raises if nobody does
            what = "has ended" if view.state in FINAL_STATES else "was"
            raise RefusedError(
                f"Temporal has no run of {view.id} any more, which {what} {view.state}",
                help=saga_command("show", view.id),
            )
        return web_ui_link(settings.temporal.web_ui, locator.temporal.namespace, run.run.id, run.run.run_id)

    link = with_locator(find)
    if link is None:
        raise UsageError(
            "no Web UI is configured", help='web_ui = "https://…" in [temporal] of saga.toml, or saga dev up'
        )
    print_document({"id": saga_id, "web_ui": link}, human=lambda: echo(link))
    if _has_browser():
        import webbrowser

        webbrowser.open(link)
    return 0


def _has_browser() -> bool:
    """Return whether there is a graphical display. Elsewhere a text browser could take over the terminal."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
