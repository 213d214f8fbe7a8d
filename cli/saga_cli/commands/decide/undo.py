"""`saga undo`: undo a saga that has completed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import load_settings, target_line, with_locator
from saga_cli.output import confirm, on_ctrl_c, warn
from saga_cli.shared_options import Operator, Yes, operator_name, required_reason
from saga_cli.wait import print_end
from sagas.errors import RefusedError
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from sagas.protocol.saga_view import SagaView
    from sagas.settings import Settings


def undo(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    reason: Annotated[str | None, typer.Option(help="reason, required; recorded with the saga")] = None,
    as_: Operator = None,
    timeout: Annotated[str | None, typer.Option(help="how long to wait for the end, for example 1m")] = None,
    yes: Yes = False,
) -> int:
    """Undo a saga that has completed, and wait for the end. Needs a worker of that saga.

    Exit code 0: everything was undone; 5: RESIDUE; 4: it waits for an operator; 9: refused.
    """
    why = required_reason(reason, "an undo is recorded with its reason")

    async def run(locator: Locator, settings: Settings) -> SagaView:
        from saga_cli.wait import wait_for_saga
        from saga_workers.interventions import undo as begin
        from saga_workers.views.answering import Workers
        from saga_workers.views.saga_view import view_of_run

        progress.append(
            f"interrupted: the undo of {saga_id} may have started; check with `{saga_command('show', saga_id)}`"
        )
        who = operator_name(as_) or locator.temporal.identity
        await begin(locator, saga_id, reason=why, who=who, task_queue=settings.temporal.task_queue)
        progress.append(f"the undo of {saga_id} continues; follow it with `{saga_command('watch', saga_id)}`")
        view = await wait_for_saga(locator, saga_id, timeout, web_ui=settings.temporal.web_ui)
        if view.state == "COMPLETED":  # the undo ended without having changed anything
            undo = (await locator.locate(saga_id)).undo
            refusal = (await view_of_run(Workers(locator.temporal, locator.keys), undo)).reason if undo else None
            raise RefusedError(f"{saga_id} was not undone: {(refusal and refusal.message) or 'the reason is unknown'}")
        return view

    async def check(locator: Locator, settings: Settings) -> None:
        from saga_workers.interventions import require_undoable

        await require_undoable(locator, saga_id)

    warn(target_line(load_settings()))
    if not yes:
        with_locator(check)  # nobody should confirm what will be refused
    confirm(f"this undoes all effects of {saga_id}", yes=yes)
    progress = [f"interrupted: {saga_id} is not being undone"]
    with on_ctrl_c(lambda: progress[-1]):
        view = with_locator(run)
    code = print_end(saga_id, view)
    return 0 if view.state == "COMPENSATED" else code
