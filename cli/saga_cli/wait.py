"""Waiting for the end of a saga."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from saga_cli.exit_codes import STILL_RUNNING, exit_code
from saga_cli.output import echo, make_console, print_document, warn
from sagas.text.shell import saga_command
from sagas.text.shortening import counted

if TYPE_CHECKING:
    from saga_workers.client import Client
    from saga_workers.location.locator import Locator
    from sagas.protocol.saga_view import SagaView

_FIRST_POLL = 0.1
_MAX_POLL = 1.0
_SILENCE = 3.0

NEEDS_A_WORKER = "it has no effect unless a worker answers"


def parse_deadline(timeout: str | None) -> float | None:
    """The time at which to give up, on the monotonic clock. Raises UsageError: not a duration."""
    from sagas.definition.times import parse_duration
    from sagas.errors import UsageError

    try:
        return None if timeout is None else time.monotonic() + parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}", help="for example --timeout 1m") from None


async def follow_saga(locator: Locator, saga_id: str, *, web_ui: str | None) -> AsyncGenerator[SagaView]:
    """The view again and again, the first at once, later ones soon after something may have changed.

    The caller decides when it has seen enough; after a final state nothing more comes, nor from the ledger.
    """
    from temporalio.client import WorkflowFailureError
    from temporalio.service import RPCError, RPCStatusCode

    from saga_activities.concurrency import Backoff, end_tasks
    from saga_workers.views.saga_view import read_view, with_blocking_checked
    from sagas.protocol.saga_view import FINAL_STATES

    async def end() -> None:
        running = (await locator.within_temporal().locate(saga_id)).open_run
        id = saga_id if running is None else running.run.id
        try:
            await locator.temporal.get_workflow_handle(id).result()
        except WorkflowFailureError:
            return  # how it ended is in the view
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # the view says that there is none
                raise

    closed = asyncio.ensure_future(end())
    follows_run = True
    try:
        for poll, interval in enumerate(Backoff(_FIRST_POLL, _MAX_POLL, factor=1.3)):
            view = await read_view(locator, saga_id, web_ui=web_ui)
            view = await with_blocking_checked(locator, view)
            yield view
            if view.state in FINAL_STATES or view.source == "ledger":
                return
            if view.bulk_workflow is not None:  # it has no run yet whose end could be waited for
                await asyncio.sleep(interval)
                follows_run = False
                continue
            if not follows_run:
                closed.cancel()
                closed, follows_run = asyncio.ensure_future(end()), True
            await asyncio.wait({closed}, timeout=interval)
            if closed.done():
                closed.result()
                await asyncio.sleep(_FIRST_POLL if poll else 0)
    finally:
        await end_tasks([closed])


ShowViews = Callable[["SagaView", Sequence["SagaView"]], None]
"""Shows the view of a saga, and of sagas nested in it that have not ended."""


@contextlib.contextmanager
def live_screen(*, stderr: bool = False, transient: bool = False) -> Iterator[ShowViews]:
    """Gives a function that shows views on the terminal in place of those before."""
    from rich.console import Group
    from rich.live import Live

    from saga_cli.render.saga_view import view_lines
    from sagas.presentation.styled_text import to_rich

    console = make_console(stderr=stderr)
    with Live(console=console, auto_refresh=False, transient=transient, vertical_overflow="crop") as live:

        def draw(view: SagaView, nested: Sequence[SagaView]) -> None:
            lines = [line for each_view in (view, *nested) for line in view_lines(each_view, now=datetime.now(UTC))]
            live.update(Group(*(to_rich(line) for line in lines)), refresh=True)

        yield draw


@contextlib.contextmanager
def _progress(warned: bool) -> Iterator[ShowViews]:
    """Shows on a terminal what happens, elsewhere what goes wrong. ``warned``: it is known that no worker answers."""
    if sys.stderr.isatty():
        with live_screen(stderr=True, transient=True) as draw:
            yield draw
    else:
        yield TroublePrinter(warned)


class TroublePrinter:
    """Prints each failed attempt in a line on stderr, once, and once why nothing happens, or what a step waits for.

    ``warned``: it has been said already why nothing happens.
    """

    def __init__(self, warned: bool = False) -> None:
        self._warned = warned
        self._attempts: dict[tuple[str, str], int | None] = {}
        self._starting: set[str] = set()

    def __call__(self, view: SagaView, nested: Sequence[SagaView] = ()) -> None:
        from saga_cli.failing_attempts import failing_calls
        from sagas.presentation.styled_text import progress_text

        why = view.incomplete or view.pause_text
        if why and not self._warned:
            self._warned = True
            warn(f"waiting for {view.id}: {why}")
        for step in view.steps:
            if step.progress and step.progress.get("starting") and step.id not in self._starting:
                self._starting.add(step.id)
                warn(f"waiting for {view.id}: {step.id}: {progress_text(step.progress)}")
        for call in (call for each_view in (view, *nested) for call in failing_calls(each_view)):
            key = (call.saga_id, call.name)
            if key not in self._attempts or self._attempts[key] != call.attempts:
                self._attempts[key] = call.attempts
                warn(f"{call.saga_id}: {call.name}: {call.text}")


@contextlib.asynccontextmanager
async def noting_silence(what: str, without_answer: str = NEEDS_A_WORKER) -> AsyncIterator[Callable[[str], None]]:
    """Say after a few seconds that no worker has answered yet, and what becomes of the request without an answer.

    Gives a function that replaces ``without_answer``, for a request of which that is found out on the way. A request
    waits up to 20 s, or 30 s if its saga has to leave a bulk workflow: a worker that has just started answers after 10.
    """
    text = without_answer

    def replace_text(other: str) -> None:
        nonlocal text
        text = other

    with _warning_later(lambda: f"no worker has answered the {what} yet; waiting: {text}"):
        yield replace_text


@contextlib.asynccontextmanager
async def noting_silent_sagas(still_open: Callable[[], int], without_answer: str) -> AsyncIterator[None]:
    """Say after a few seconds for how many sagas no worker has answered a request to each of them."""
    with _warning_later(
        lambda: f"no worker has answered for {counted(still_open(), 'saga')} yet; waiting: {without_answer}"
    ):
        yield


@contextlib.contextmanager
def _warning_later(text: Callable[[], str]) -> Iterator[None]:
    notice = asyncio.get_running_loop().call_later(_SILENCE, lambda: warn(text()))
    try:
        yield
    finally:
        notice.cancel()


async def wait_for_end(client: Client, saga_id: str, timeout: str | None, *, warned: bool = False) -> SagaView:
    """The view when the saga is over or parked, or as it is when ``timeout`` (a duration) has passed.

    ``warned``: somebody has said that no worker polls.
    """
    web_ui = client.project.settings.temporal.web_ui
    return await wait_for_saga(client.locator, saga_id, timeout, web_ui=web_ui, warned=warned)


async def wait_for_saga(
    locator: Locator, saga_id: str, timeout: str | None, *, web_ui: str | None, warned: bool = False
) -> SagaView:
    """Wait like :func:`wait_for_end`, without a client of the project."""
    end = parse_deadline(timeout)
    views = follow_saga(locator, saga_id, web_ui=web_ui)
    async with contextlib.aclosing(views):
        view = await anext(views)
        if exit_code(view) != STILL_RUNNING or view.source is not None:
            return view
        with _progress(warned) as show:
            return await _follow_to_end(locator, views, view, end, show)


async def _follow_to_end(
    locator: Locator, views: AsyncGenerator[SagaView], view: SagaView, end: float | None, show: ShowViews
) -> SagaView:
    from saga_cli.failing_attempts import running_below

    while exit_code(view) == STILL_RUNNING and view.source is None:
        try:
            async with asyncio.timeout(None if end is None else end - time.monotonic()):
                show(view, await running_below(locator, view))
                view = await anext(views)
        except TimeoutError:
            break
    return view


def print_end(saga_id: str, view: SagaView) -> int:
    """Print the view of a saga that was waited for; the exit code."""
    from saga_cli.render.saga_view import print_view

    print_document(view.to_json(), human=lambda: print_view(view))
    if exit_code(view) == STILL_RUNNING:
        echo(f"{saga_id} is still running; follow it with `{saga_command('watch', saga_id)}`")
    return exit_code(view)
