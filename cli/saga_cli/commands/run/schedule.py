"""`saga schedule`: the scheduled starts of the project's sagas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.exit_codes import DONE, FAILED
from saga_cli.output import echo, print_document, print_list, print_table, warn
from saga_cli.own_identity import own_identity
from saga_cli.shared_options import Operator, operator_name, print_target, warn_without_poller
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from saga_workers.client import Client
    from saga_workers.schedules.schedule_view import ScheduleView

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="The scheduled starts of sagas, by the saga's name.",
)

Name = Annotated[str, typer.Argument(help="the saga's name")]


@app.command("list")
def list_command() -> int:
    """List the schedules of the project: those of its definitions, and those of triggers that were removed."""

    async def read(client: Client) -> list[ScheduleView]:
        from saga_workers.schedules.schedule_view import list_views

        return await list_views(client.temporal, client.project)

    views = _with_client(read)
    print_list([view.to_json() for view in views], human=_print_list)
    return DONE


def _print_list(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        echo("no schedules")
        return
    cells = [
        (
            row["saga"],
            row["state"],
            row["cron"] or "",
            row["timezone"] or "",
            (row["next"] or [""])[0],
            row["why"] or "",
        )
        for row in rows
    ]
    print_table(cells, ("saga", "state", "cron", "timezone", "next start", ""))
    if any(row["state"] == "missing" for row in rows):
        echo("saga setup    makes the missing ones")


@app.command("show")
def show_command(name: Name) -> int:
    """Show one schedule: its next times, its last starts, and why starts were refused."""

    async def read(client: Client) -> ScheduleView:
        from saga_workers.schedules.schedule_view import read_view

        return await read_view(client.locator, client.project, name)

    view = _with_client(read)
    print_document(view.to_json(), human=lambda: _print_view(view))
    return DONE


def _print_view(view: ScheduleView) -> None:
    echo(
        f"{view.saga}: {view.state}" + (f", {view.why}" if view.why else "") + (f" ({view.note})" if view.note else "")
    )
    times = view.times
    if times is not None:
        echo(f"  cron {times.cron}, {times.timezone}, overlap {times.overlap}, jitter {times.jitter:g} s")
    if view.counts is not None:
        started, skipped, missed = view.counts
        echo(f"  {started} starts, {skipped} skipped because an earlier saga ran, {missed} missed")
        if view.waiting:
            waits = "1 start waits" if view.waiting == 1 else f"{view.waiting} starts wait"
            echo(f"  {waits} for the end of an earlier saga")
    for time in view.next[:5]:
        echo(f"  next  {time}")
    print_table([(start.scheduled_at, start.id or "", start.outcome) for start in view.last], indent=2)
    if view.need in ("create", "update", "remove"):
        warn(f"help: {saga_command('setup')}    brings it in line with the definitions")


@app.command("pause")
def pause_command(
    name: Name,
    reason: Annotated[str, typer.Option(help="reason; shown with the schedule")] = "",
    as_: Operator = None,
) -> int:
    """Start no more sagas at the times of a schedule until it is resumed; running sagas go on."""
    return _set_paused(name, reason, operator_name(as_), paused=True)


@app.command("resume")
def resume_command(
    name: Name,
    reason: Annotated[str, typer.Option(help="reason; shown with the schedule")] = "",
    as_: Operator = None,
) -> int:
    """Let a paused schedule start sagas again. The times that passed meanwhile start nothing: see saga backfill."""
    return _set_paused(name, reason, operator_name(as_), paused=False)


def _set_paused(name: str, reason: str, who: str | None, *, paused: bool) -> int:
    async def change(client: Client) -> str:
        from saga_workers.schedules.schedule_control import set_paused

        print_target(client.project.settings)
        return await set_paused(client.temporal, client.project, name, paused=paused, reason=reason, who=who)

    state = _with_client(change)
    print_document({"saga": name, "state": state}, human=lambda: echo(f"{name}: {state}"))
    return DONE


@app.command("run")
def run_command(name: Name) -> int:
    """Start a saga now, as at a time of its schedule; it counts for the overlap like any other start."""

    async def run(client: Client) -> dict[str, Any]:
        from saga_workers.schedules.schedule_control import run_now

        print_target(client.project.settings)
        await warn_without_poller(client)
        return await run_now(client.locator, client.project, name)

    result = _with_client(run)
    print_document(result, human=lambda: echo(f"{name}: {result['outcome']}"))
    return FAILED if result["refused"] else DONE


def _with_client(work: Callable[[Client], Awaitable[Any]]) -> Any:
    from saga_workers.client import Client
    from sagas.project import Project

    async def connected() -> Any:
        async with await Client.connect(Project(load_settings()), identity=own_identity()) as client:
            return await work(client)

    return asyncio.run(connected())
