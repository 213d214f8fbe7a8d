"""`saga parked`: what needs an operator, grouped."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import with_locator
from saga_cli.exit_codes import DONE, FAILED
from saga_cli.output import echo, print_list, wants_json, warn
from sagas.errors import SagaError
from sagas.text.shortening import counted, join_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saga_workers.location.locator import Locator
    from saga_workers.location.refused_replies import ReplyRefusal
    from saga_workers.views.parked import ParkedList
    from sagas.settings import Settings


def parked(
    saga: Annotated[str | None, typer.Option(help="only sagas of this name")] = None,
    since: Annotated[str | None, typer.Option(help="only sagas started since then: 2h, 7d, or 2026-03-01")] = None,
    label: Annotated[list[str] | None, typer.Option("-l", "--label", help="name=value; repeatable")] = None,
    all_: Annotated[bool, typer.Option("--all", help="include sagas whose other branches are still running")] = False,
    limit: Annotated[int, typer.Option(help="maximum number of sagas, those that started first", min=1)] = 100,
) -> int:
    """List what needs an operator, grouped by saga, step, operation and error, with the command for each group."""
    from saga_cli.shared_options import saga_filter

    async def find(locator: Locator, settings: Settings) -> tuple[ParkedList, Sequence[ReplyRefusal]]:
        from saga_workers.ledger.run_ledger import LedgerUnavailable
        from saga_workers.views.parked import read_parked

        asked = saga_filter(settings, saga=saga, since=since, labels=label or ())
        try:
            parked_list = await read_parked(locator, asked, include_running=all_, nested=True, limit=limit)
        except LedgerUnavailable as error:
            warn(f"these are only the sagas that Temporal has: {error.message}")
            parked_list = await read_parked(
                locator.within_temporal(), asked, include_running=all_, nested=True, limit=limit
            )
        return parked_list, await _refused_replies(settings, parked_list)

    from saga_workers.views.parked import group_parked

    parked_list, refused = with_locator(find)
    groups = [_with_refused_reply(group, refused) for group in group_parked(parked_list.operations)]
    if groups or not parked_list.unreachable or wants_json():
        print_list(groups, human=lambda rows: _print_groups(rows))
    if parked_list.left_out:
        (warn if wants_json() else echo)(f"… {parked_list.left_out}")
    if not parked_list.unreachable:
        return 0
    why = next(iter(parked_list.unreachable.values()))
    warn(f"{counted(len(parked_list.unreachable), 'saga')} could not be queried, and may need an operator: {why}")
    return DONE if groups else FAILED


async def _refused_replies(settings: Settings, parked_list: ParkedList) -> Sequence[ReplyRefusal]:
    """The refused replies to commands of the parked sagas."""
    ids = list(dict.fromkeys(operation.saga_id for operation in parked_list.operations))
    if settings.kafka.outbox is None or not ids:
        return ()
    from saga_workers.location.refused_replies import refused_replies

    try:
        return await refused_replies(settings, ids)
    except SagaError as error:
        warn(f"it is unknown whether replies to commands were refused: {error.message}")
        return ()


def _with_refused_reply(group: dict[str, Any], refused: Sequence[ReplyRefusal]) -> dict[str, Any]:
    """The group, with the last refused reply to a command of one of its sagas."""
    texts = [
        reply.text
        for reply in refused
        if (reply.step.partition("#")[0], reply.op) == (group["step"], group["op"]) and reply.saga_id in group["ids"]
    ]
    return {**group, "refused_reply": texts[-1]} if texts else group


def _print_groups(groups: Any) -> None:
    from sagas.presentation.styled_text import format_duration, parse_timestamp

    if not groups:
        echo("nothing needs an operator")
        return
    now = datetime.now(UTC)
    for group in groups:
        oldest = parse_timestamp(group["oldest"])
        age = f", the oldest for {format_duration(now, oldest)}" if oldest else ""
        op = {"do": "", "undo": "the undo of ", "confirm": "the confirm of "}.get(group["op"], "")
        echo(f"⏸ {group['count']} × {group['saga']}: {op}{group['step']}{age}")
        echo(f"    {group['error']}")
        if "refused_reply" in group:
            echo(f"    {group['refused_reply']}")
        echo(f"    {join_names(group['ids'], 5)}")
        if "rows" in group:
            from sagas.presentation.parked_rows import row_lines
            from sagas.presentation.styled_text import to_plain
            from sagas.protocol.saga_view import ParkedView

            shown = {"step": group["step"], "op": group["op"], "since": group["oldest"], "why": group["error"], **group}
            echo(*(f"  {to_plain(line)}" for line in row_lines(ParkedView.from_json(shown))))
        if "source" in group:
            echo("    from the ledger, Temporal no longer has the runs: see how each of them can go on")
        else:
            echo(f"    decisions: {', '.join(group['decisions'])}")
        echo(f"    {group['command']}")
