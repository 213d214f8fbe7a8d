"""`saga undo`: take back a saga that has completed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings, target, with_client
from saga_cli.interrupts import on_ctrl_c
from saga_cli.output import confirm, warn
from saga_cli.people import needed, who
from saga_cli.waiting import print_end
from sagas.errors import RefusedError

if TYPE_CHECKING:
    from temporalio.client import Client

    from sagas.settings import Settings


def undo(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    reason: Annotated[str | None, typer.Option(help="why; it is kept in the story")] = None,
    as_: Annotated[str | None, typer.Option("--as", help="who asks; default: SAGA_USER")] = None,
    timeout: Annotated[str | None, typer.Option(help="how long to wait for the end, for example 1m")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> int:
    """Take back a saga that has completed, and wait for the end. Needs a worker of that saga.

    Exit code 0: everything was undone; 5: something was left (RESIDUE); 4: it waits for a person; 9: refused.
    """
    why = needed(reason, "--reason", "an undo is kept in the story with its reason")

    async def run(client: Client, settings: Settings) -> dict[str, Any]:
        from saga_cli.waiting import wait_for
        from saga_workers.runs import describe
        from saga_workers.steering import undo as begin
        from saga_workers.stories import story_of

        far.append(f"interrupted: the undo of {saga_id} may have begun; `saga show {saga_id}` tells")
        undo_id = await begin(client, saga_id, reason=why, who=who(as_) or client.identity)
        far.append(f"the undo of {saga_id} goes on; `saga watch {saga_id}` follows it")
        story = await wait_for(client, saga_id, timeout, web_ui=settings.temporal.web_ui)
        if story["state"] == "COMPLETED":  # the undo ended without having changed anything
            ended = await describe(client, undo_id)
            refusal = (await story_of(client, ended))["reason"] if ended else None
            raise RefusedError(f"{saga_id} was not undone: {(refusal or {}).get('message') or 'no reason is known'}")
        return story

    warn(target(load_settings()))
    confirm(f"This undoes all effects of {saga_id}.", yes=yes)
    far = [f"interrupted: {saga_id} is not being undone"]
    with on_ctrl_c(lambda: far[-1]):
        story = with_client(run)
    code = print_end(saga_id, story)
    return 0 if story["state"] == "COMPENSATED" else code
