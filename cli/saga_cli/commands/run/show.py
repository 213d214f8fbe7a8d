"""`saga show`: the view of one saga."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import load_settings, with_locator
from saga_cli.output import echo, print_document, warn, write_page
from saga_cli.shared_options import Operator, operator_name, required_reason
from sagas.errors import SagaError, UsageError

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.protocol.saga_view import SagaView
    from sagas.settings import Settings


_REVEAL = (
    "show x-sensitive values in clear; before that the ledger records the time, the operator (--as) and --reason, "
    "which `saga show ID` and the console list"
)


def show(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write an HTML page with the view")] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help=_REVEAL)] = False,
    reason: Annotated[str | None, typer.Option(help="with --reveal, required: why; recorded with it")] = None,
    as_: Operator = None,
) -> int:
    """Show what happened, what was undone, what is stuck and what to do.

    A closed saga needs no worker; a running one is queried through its worker. One that Temporal no longer has is read
    from the ledger of the project.
    """
    if reason is not None and not reveal:
        raise UsageError("--reason is recorded with --reveal: give both")
    if reveal:
        from saga_workers.privacy import require_record

        require_record(load_settings(), "--reveal")
        reason = required_reason(reason, "a look at hidden values is recorded with its reason")
    from saga_cli.render.saga_view import print_view, view_page
    from saga_workers.stuck.stuck_view import read_view_with_stuck
    from saga_workers.views.accesses import with_accesses

    async def read(locator: Locator, settings: Settings) -> SagaView:
        view = await read_view_with_stuck(locator, saga_id, web_ui=settings.temporal.web_ui)
        if reveal:
            from saga_workers.privacy.revealing import revealed_view

            who = operator_name(as_) or locator.temporal.identity
            view = await revealed_view(locator, settings, view, who=who, reason=reason)
        else:
            view = await with_accesses(locator, view)
        if not any(step.guarantee == "two-phase" for step in view.steps):
            return view
        from saga_workers.views.prepared import with_stuck_prepared

        try:
            return await with_stuck_prepared(settings, view)
        except SagaError as error:
            warn(error.message)
            return view

    view = with_locator(read)
    if html is not None:
        write_page(html, view_page(view))
    print_document(view.to_json(), human=lambda: print_view(view, values=reveal))
    if html is not None:
        echo(f"written: {html}")
    return 0
