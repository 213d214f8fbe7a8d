"""`saga open`: the saga in the Temporal Web UI."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from saga_cli.context import with_client
from saga_cli.output import echo, print_document
from sagas.errors import UsageError


def open_saga(saga_id: Annotated[str, typer.Argument(help="the saga's id")]) -> int:
    """Print the link to a saga, and open it in a browser if possible."""
    from saga_workers.ledger.run_ledger import using_ledger
    from saga_workers.temporal.temporal_runs import describe_run
    from saga_workers.views.run_facts import web_ui_link
    from saga_workers.views.saga_view import unknown_saga_error

    async def find(client, settings) -> str | None:
        id, described = saga_id, await describe_run(client, saga_id)
        if described is None:
            async with using_ledger(settings) as ledger:
                claim = None if ledger is None else await ledger.bulk_claim(saga_id)
            if claim is not None and claim.bulk_id is not None:
                id, described = claim.bulk_id, await describe_run(client, claim.bulk_id)
        if described is None:
            raise unknown_saga_error(client, saga_id)
        return web_ui_link(settings.temporal.web_ui, client.namespace, id, described.run.run_id)

    link = with_client(find)
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
    """Whether there is a graphical display. Elsewhere a text browser could take over the terminal."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
