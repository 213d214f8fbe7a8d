"""`saga list`: one line for each saga."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import global_options, with_locator
from saga_cli.output import echo, make_console, print_document, to_json, warn
from sagas.errors import SagaError
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_workers.location.locator import Locator
    from saga_workers.views.saga_list import SagaFilter
    from sagas.protocol.saga_view import SagaView
    from sagas.settings import Settings


def list_sagas(
    saga: Annotated[str | None, typer.Option(help="only sagas of this name")] = None,
    state: Annotated[list[str] | None, typer.Option(help="only in this state; repeatable, or a,b")] = None,
    since: Annotated[str | None, typer.Option(help="only sagas started since then: 2h, 7d, or 2026-03-01")] = None,
    label: Annotated[list[str] | None, typer.Option("-l", "--label", help="name=value; repeatable")] = None,
    stuck: Annotated[
        bool,
        typer.Option(
            "--stuck", help="only sagas that will not finish by themselves, including parked ones, with the reasons"
        ),
    ] = False,
    where: Annotated[str | None, typer.Option(help="additional Temporal list filter")] = None,
    limit: Annotated[int, typer.Option(help="maximum number of sagas", min=1)] = 50,
) -> int:
    """List sagas: first the open ones, by their start, then the others, by their end; the latest comes first.

    Open sagas of bulk workflows follow the open ones with workflows of their own.

    Temporal's visibility store may lag; `saga show` is always exact.

    Sagas that only the ledger of the project knows follow those that Temporal has, unless --where or --stuck is given.
    """
    from saga_cli.shared_options import saga_filter

    async def find(locator: Locator, settings: Settings) -> int:
        from saga_workers.ledger.run_ledger import LedgerUnavailable

        asked = saga_filter(settings, saga=saga, states=state or (), since=since, labels=label or (), where=where)
        views: list[SagaView] = []
        is_cut = False
        find_sagas = _find_stuck if stuck else _find
        try:
            async with aclosing(find_sagas(locator, settings, asked, limit + 1)) as listed:
                async for view in listed:
                    if is_cut := len(views) == limit:
                        break
                    if global_options().format == "jsonl":
                        print(to_json(_row_json(view)), flush=True)
                    views.append(view)
        except LedgerUnavailable as error:
            warn(f"these are only the sagas that Temporal has: {error.message}")
        late = await _late_rows(settings) if stuck else []
        if global_options().format != "jsonl":
            print_document(
                [_row_json(view) for view in views],
                human=lambda: _print_list(views, stuck, is_cut=is_cut, are_late=bool(late)),
            )
        if stuck:
            await _warn_of_pauses(locator, asked, is_cut=is_cut)
            for name, problem in late:
                warn(f"{name}: {problem}", f"help: {saga_command('enqueued', 'list')}    shows the rows")
        if saga is not None and not views:
            _warn_of_unknown_name(settings, saga)
        return 0

    return with_locator(find)


async def _warn_of_pauses(locator: Locator, asked: SagaFilter, *, is_cut: bool) -> None:
    """Print the pauses of connections and of the sagas of a name, the circuit breakers that are open, and how many
    sagas wait for each, also of those that the list leaves out.
    """
    from saga_workers.views.held_counts import LIST_ONE_BY_ONE, count_held

    try:
        pauses = [*await locator.ledger.pauses(), *await locator.ledger.open_breakers()]
    except SagaError as error:
        warn(error.message)
        pauses = []
    held = await count_held(locator.temporal, asked, [pause.order for pause in pauses])
    for pause in pauses:
        warn(f"{pause.text}; {held.words(pause)}", f"help: {pause.resume_command}    ends it")
    if is_cut and held.one_by_one:
        warn(held.one_by_one_text, f"help: {LIST_ONE_BY_ONE}    shows them")


async def _late_rows(settings: Settings) -> list[tuple[str, str]]:
    """Return the connections with enqueued rows that are not delivered, whose sagas are in no list, and the reasons."""
    from saga_workers.enqueued.stuck_rows import stuck_rows

    return [late async for late in stuck_rows(settings)]


def _warn_of_unknown_name(settings: Settings, saga: str) -> None:
    """Say that the project has no saga of this name: the empty list may be that of a mistyped one."""
    from sagas.errors import did_you_mean
    from sagas.project import Project

    names = tuple(Project(settings).definitions)
    if saga not in names:
        warn(f"the project has no definition of a saga {printable_line(saga)}{did_you_mean(saga, names)}")


async def _find_stuck(locator: Locator, settings: Settings, asked: SagaFilter, limit: int) -> AsyncGenerator[SagaView]:
    """The stuck sagas; a warning for each question that the databases of the project do not answer."""
    from saga_workers.stuck.database_traces import read_database_traces, unanswered_message
    from saga_workers.stuck.stuck_sagas import list_stuck
    from sagas.project import Project

    databases = await read_database_traces(locator, Project(settings), lambda _, error: warn(unanswered_message(error)))
    web_ui = settings.temporal.web_ui
    async for view in list_stuck(locator, asked, limit=limit, web_ui=web_ui, databases=databases):
        yield view


def _find(locator: Locator, settings: Settings, asked: SagaFilter, limit: int) -> AsyncGenerator[SagaView]:
    from saga_workers.views.saga_list import query_sagas

    ask = global_options().format != "human"  # people wait for the list, programs for whole documents
    return query_sagas(locator, asked, limit=limit, web_ui=settings.temporal.web_ui, ask_running=ask)


def _row_json(view: SagaView) -> dict[str, Any]:
    document = view.to_json()
    del document["steps"]
    return document


def _print_list(views: Sequence[SagaView], stuck: bool, *, is_cut: bool, are_late: bool = False) -> None:
    """``are_late``: rows that applications have enqueued are not delivered, of which a warning tells more."""
    if not views:
        late = "no saga is stuck, but rows that are enqueued are not delivered"
        echo(late if are_late else "nothing is stuck" if stuck else "no sagas")
        return
    held = [view for view in views if stuck and _is_held_back(view)]
    _print_table([view for view in views if not (stuck and _is_held_back(view))])
    groups: dict[tuple[str, ...], list[SagaView]] = {}
    for view in held:
        groups.setdefault(tuple(view.stuck or ()), []).append(view)
    for reasons, group in groups.items():
        _print_table([replace(view, stuck=()) for view in group])
        of_all = f"all {len(group)}: " if len(group) > 1 else ""
        for reason in reasons:
            _print_reason(of_all + reason)
    if is_cut:
        echo(f"… the first {len(views)}; use --limit N for more")


def _is_held_back(view: SagaView) -> bool:
    """True if what holds the saga also holds others: a pause of a name or a connection, or a circuit breaker."""
    return view.paused is not None and view.paused.kind is not None and len(view.stuck or ()) == 1


def _print_reason(reason: str) -> None:
    from rich.text import Text

    make_console().print(Text(f"    {printable_line(reason)}", "yellow"), soft_wrap=True)


_WIDEST = 60
"""Characters of a column. A longer cell is printed whole, since ids are copied, and widens only its own line."""


def _print_table(views: Sequence[SagaView]) -> None:
    from rich.text import Text

    from saga_cli.render.saga_view import STATE_STYLES

    if not views:
        return
    now = datetime.now(UTC)
    cells = [_cells(view, now) for view in views]
    widths = [min(_WIDEST, max(len(row[index]) for row in cells)) for index in range(4)]
    out = make_console()
    for view, line in zip(views, cells, strict=True):
        text = Text()
        for index, (cell, width) in enumerate(zip(line, widths, strict=False)):
            text.append(cell.ljust(width) + "  ", STATE_STYLES.get(cell, "") if index == 2 else "")
        text.append(line[4], "dim")
        text.rstrip()
        out.print(text, soft_wrap=True)
        for reason in view.stuck or ():
            _print_reason(reason)


def _cells(view: SagaView, now: datetime) -> list[str]:
    from sagas.presentation.styled_text import format_duration, parse_timestamp
    from sagas.protocol.doubtful_outcomes import short_doubt

    started, ended = parse_timestamp(view.started_at), parse_timestamp(view.ended_at)
    when = "" if started is None else f"{format_duration(now, started)} ago"
    if started is not None and ended is not None:
        when += f", took {format_duration(ended, started)}"
    because = ""
    if (reason := view.reason) is not None:
        where = f" at {reason.step}" if reason.step else ""
        because = f"{reason.title}{where}" + (f": {reason.message}" if reason.message else "")
    labels = " ".join(f"{name}={value}" for name, value in view.labels.items())
    doubt = short_doubt(view.incomplete or "") if view.is_of_unsigned_run else ""
    source = "from the ledger" if view.source else ""
    paused = "" if view.stuck is not None else view.pause_text or ""
    notes = (doubt, source, paused, because, labels)
    cells = (view.id, view.saga, view.state, when, "  ".join(part for part in notes if part))
    return [printable_line(cell) for cell in cells]
