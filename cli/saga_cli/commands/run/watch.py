"""`saga watch`: the view while it changes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import global_options, with_locator
from saga_cli.output import echo, on_ctrl_c, print_document, to_json, wants_json
from sagas.errors import UsageError
from sagas.text.shell import saga_command

if TYPE_CHECKING:
    from saga_cli.wait import ShowViews
    from saga_workers.location.locator import Locator
    from sagas.protocol.saga_view import OperationView, SagaView, StepView
    from sagas.settings import Settings


def watch(
    saga_id: Annotated[str, typer.Argument(help="the saga's id")],
    until: Annotated[
        str | None, typer.Option(help="`parked`: also stop when the saga, or one nested in it, waits for an operator")
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="how long to watch, for example 1m")] = None,
) -> int:
    """Follow a saga until it ends; the exit code shows how. Ctrl-C stops watching, not the saga."""
    if until not in (None, "parked"):
        raise UsageError(f"--until takes `parked`, not {until}")
    progress = [f"interrupted before {saga_id} was found; check with `{saga_command('show', saga_id)}`"]
    with on_ctrl_c(lambda: progress[-1]):
        view = with_locator(
            lambda locator, settings: _follow(locator, settings, saga_id, until == "parked", timeout, progress)
        )
    from saga_cli.exit_codes import STILL_RUNNING, exit_code
    from sagas.protocol.saga_view import FINAL_STATES

    left_early = view.state not in FINAL_STATES and not (until == "parked" and view.waits_for_a_person)
    if global_options().format == "json":
        print_document(view.to_json(), human=lambda: None)
    if left_early:
        echo(f"{saga_id} is still running")
        return STILL_RUNNING
    return exit_code(view)


async def _follow(
    locator: Locator, settings: Settings, saga_id: str, until_parked: bool, timeout: str | None, progress: list[str]
) -> SagaView:
    """``far`` gets what to say about an interrupt from now on."""
    from saga_cli.failing_attempts import running_below
    from saga_cli.wait import follow_saga, noting_silence, parse_deadline

    end = parse_deadline(timeout)
    view: SagaView | None = None
    following = follow_saga(locator, saga_id, web_ui=settings.temporal.web_ui)
    async with contextlib.aclosing(following) as views:
        with _screen() as draw:
            while True:
                remaining = None if end is None or view is None else max(0.0, end - time.monotonic())
                asking = (
                    noting_silence("query", "without an answer, what Temporal knows is shown")
                    if view is None
                    else contextlib.nullcontext()
                )
                try:
                    async with asyncio.timeout(remaining), asking:
                        view = await anext(views)
                except (TimeoutError, StopAsyncIteration):
                    assert view is not None  # the first one comes at once
                    return view
                progress[:] = [f"{saga_id} is still running; follow it again with `{saga_command('watch', saga_id)}`"]
                draw(view, await running_below(locator, view))
                if until_parked and view.waits_for_a_person:
                    return view


@contextlib.contextmanager
def _screen() -> Iterator[ShowViews]:
    """Gives a function that shows views: live on a terminal, else one line for each change."""
    from saga_cli.wait import TroublePrinter, live_screen

    if wants_json() or not sys.stdout.isatty():
        yield _ChangePrinter(TroublePrinter())
        return

    with live_screen() as draw:
        yield draw


class _ChangePrinter:
    """Prints what has changed since the last view: lines for people, documents with ``--jsonl``.

    Whoever wants JSON gets the failed attempts as lines on stderr.
    """

    def __init__(self, trouble: ShowViews) -> None:
        self._trouble = trouble
        self._last: tuple[SagaView, ...] = ()
        self._shown: dict[str, list[str]] = {}

    def __call__(self, view: SagaView, nested: Sequence[SagaView] = ()) -> None:
        if (view, *nested) == self._last:
            return
        self._last = (view, *nested)
        match global_options().format:
            case "jsonl":
                print(to_json(view.to_json()), flush=True)
                self._trouble(view, nested)
            case "json":
                self._trouble(view, nested)  # the last view is printed at the end
            case _:
                self._print_lines(view, nested)

    def _print_lines(self, view: SagaView, nested: Sequence[SagaView]) -> None:
        from saga_cli.failing_attempts import failing_calls
        from sagas.presentation.styled_text import local_time, progress_text, reason_text

        now = local_time(datetime.now(UTC))
        because = f": {view.reason.title}: {reason_text(view)}" if view.reason else ""
        facts = {"": [f"{view.id} {view.state}{because}"]}
        if view.pause_text:
            facts["paused"] = [f"{view.id} is {view.pause_text}"]
        if view.incomplete:
            facts["incomplete"] = [f"incomplete: {view.incomplete}"]
        for step in view.steps:
            undo = step.compensation
            undone = f", undo {undo.state}" if undo and undo.state != "PENDING" else ""
            if step.state != "PENDING" or undone:
                doing = f": {progress_text(step.progress)}" if step.progress else ""
                retried = f"{_retried(step)}{undone}{_retried(undo) if undo else ''}"
                facts[step.id] = [f"  {step.id} {step.state}{retried}{doing}"]
        for call in (call for each_view in nested for call in failing_calls(each_view)):
            facts[f"{call.saga_id} {call.name}"] = [f"  {call.saga_id}: {call.name}: {call.text}"]
        for row in view.notifications:
            attempts = f", attempt {row.attempts}" if row.attempts else ""
            why = f": {row.error.message}" if row.error else ""
            facts[row.id] = [f"  {row.id} {row.state or 'PENDING'}{attempts}{why}"]
        for number, operation in enumerate(view.parked):
            commands = (f"      {command}" for command in operation.commands)
            facts[f"parked {number}"] = [f"  {operation.step} waits for an operator: {operation.why}", *commands]
        for name, lines in facts.items():
            if self._shown.get(name) != lines:
                echo(f"{now}  {lines[0]}", *lines[1:])
        self._shown = facts


def _retried(row: StepView | OperationView) -> str:
    from sagas.presentation.styled_text import attempt_text

    return f" ({attempt_text(row)})" if row.state == "RUNNING" and row.error else ""
