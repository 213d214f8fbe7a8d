"""`saga forget`: replace the sensitive values of a saga that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import load_settings, target_line, with_locator
from saga_cli.exit_codes import DONE, RESIDUE
from saga_cli.output import confirm, echo, print_document, print_table, warn
from saga_cli.shared_options import Operator, Yes, operator_name, required_reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saga_workers.location.locator import Locator
    from saga_workers.privacy.forgetting import Subject
    from saga_workers.privacy.places import ForgottenPlace
    from sagas.settings import Settings


def forget(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    reason: Annotated[str | None, typer.Option(help="reason, required; recorded in the ledger")] = None,
    delete_run: Annotated[
        bool, typer.Option("--delete-run", help="also delete its runs in Temporal; the ledger keeps its story")
    ] = False,
    as_: Operator = None,
    yes: Yes = False,
) -> int:
    """Replace the x-sensitive values of a saga that has ended, everywhere they can be replaced, and say where not.

    The saga cannot be undone afterwards. Can be repeated, also after it was interrupted. Exit code 0: none of
    these places has such a value any more; 5: some stay; 9: refused. Your own tables and topics are not searched.
    """
    from saga_workers.privacy import require_record

    why = required_reason(reason, "it is recorded with your name")
    require_record(load_settings(), "forget")

    async def find(locator: Locator, settings: Settings) -> Subject | None:
        from saga_workers.privacy.forgetting import find_subject
        from saga_workers.privacy.refused_starts import is_refused_start

        if await is_refused_start(locator, settings, saga_id):
            return None
        return await find_subject(locator, settings, saga_id, delete_run=delete_run)

    async def run(locator: Locator, settings: Settings) -> list[ForgottenPlace]:
        from saga_workers.privacy.forgetting import find_subject, forget
        from saga_workers.privacy.refused_starts import forget_refused_start, is_refused_start

        if await is_refused_start(locator, settings, saga_id):
            name = operator_name(as_) or locator.temporal.identity
            return await forget_refused_start(locator, settings, saga_id, who=name, reason=why, delete_run=delete_run)
        subject = await find_subject(locator, settings, saga_id, delete_run=delete_run)
        who = operator_name(as_) or locator.temporal.identity
        return await forget(locator, settings, subject, who=who, reason=why, delete_run=delete_run)

    warn(target_line(load_settings()))
    if not yes:
        subject = with_locator(find)  # nobody should confirm what will be refused
        can_undo = subject is not None and subject.view.can_undo
        undo = ", so that it cannot be undone any more" if can_undo else ""
        confirm(f"this replaces the sensitive values of {saga_id} for good{undo}", yes=yes)
    places = with_locator(run)
    complete = all(place.status != "stays" for place in places)
    document = {"id": saga_id, "complete": complete, "places": [place.to_json() for place in places]}
    print_document(document, human=lambda: _print(saga_id, places, complete=complete))
    return DONE if complete else RESIDUE


def _print(saga_id: str, places: Sequence[ForgottenPlace], *, complete: bool) -> None:
    print_table([(place.place, place.status, place.detail) for place in places], ("PLACE", "", ""))
    stays = "no value stays in these places" if complete else "values stay in some of these places"
    echo(f"{saga_id}: {stays}; your own tables and topics were not searched")
