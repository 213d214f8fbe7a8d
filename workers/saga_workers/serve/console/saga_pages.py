"""The pages of one saga: its state, its picture, and its rows in the databases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.relay.saga_events import MAX_EVENTS, OutboxEvent
from saga_workers.serve.console.console_project import ConsoleProject, require_id
from saga_workers.serve.console.html_responses import html_response, picture_response
from saga_workers.serve.console.possible_requests import awaited_signals, possible_requests
from saga_workers.serve.console.progress import progress_of
from saga_workers.serve.console.story import story_of
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import PageNotFound, Visitor
from saga_workers.serve.limits import MAX_LISTED, QUERY_TIMEOUT
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.views.accesses import with_accesses
from saga_workers.views.reported_reasons import unreported_reasons
from saga_workers.views.saga_view import read_view
from sagas.errors import SagaError, UsageError
from sagas.presentation.graph import build_saga_graph
from sagas.presentation.graph_picture import to_svg
from sagas.presentation.parked_outputs import output_lines
from sagas.presentation.parked_rows import rows_table
from sagas.presentation.step_text import (
    MAX_INLINE,
    failed_calls,
    forward_text,
    is_held_back,
    is_unreached,
    parked_arguments,
    rows_to_show,
    undo_span,
)
from sagas.presentation.styled_text import error_text, reason_text, to_plain
from sagas.presentation.unproven_effects import unproven_lines
from sagas.presentation.web_ui_text import residue_text
from sagas.protocol.saga_view import SagaView, StepView

_DATABASES_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class StepRow:
    """A row of the table of steps. ``note``: in place of the rest, for items of a `for_each` that are left out.

    ``error``: the whole of an error that ``forward`` begins. ``calls``: the arguments of what has failed, with titles.
    """

    note: str | None = None
    step: StepView | None = None
    forward: str = ""
    backward: str = ""
    error: str = ""
    calls: Sequence[tuple[str, Any]] = ()


class SagaPages:
    """Pages about a saga with the id in the address."""

    def __init__(self, project: ConsoleProject) -> None:
        self._project = project

    async def show(self, request: Request, visitor: Visitor) -> Response:
        """The whole story of a saga, as `saga show` has it."""
        locator, saga_id = self._project.locator, require_id(unquote(request.path_params["id"]))
        try:
            view = await read_view_with_stuck(locator, saga_id, web_ui=self._project.settings.temporal.web_ui)
        except UsageError as error:
            raise PageNotFound(error.message) from None
        view = await with_accesses(locator, await self._project.require_shown(view))
        now = datetime.now(UTC)
        page = render(
            "saga.html",
            view.id,
            visitor=visitor,
            place="sagas",
            view=view,
            stuck=unreported_reasons(view),
            may_operate=visitor.may_operate,
            requests=possible_requests(view),
            signals=list(awaited_signals(view)),
            reason=reason_text(view) if view.reason else None,
            progress=progress_of(view) if view.steps else None,
            titles={step.id: _title(step) for step in view.steps},
            rows=step_rows(view, now),
            story=story_of(view),
            has_graph=view.saga in self._project.project.definitions,
            parked_rows=rows_table(view),
            outputs={each.step: [to_plain(line) for line in output_lines(each)] for each in view.parked},
            called_with={each.step: parked_arguments(view, each) for each in view.parked},
            unproven=unproven_lines(view),
            residue=[(row, residue_text(view, row)) for row in view.residue],
        )
        return html_response(200, page)

    async def draw(self, request: Request, _: Visitor) -> Response:
        """The graph of a saga, by the definition that the project has now, in the colours of this run."""
        view = await self._read(request)
        definition = self._project.project.definitions.get(view.saga)
        if definition is None:
            raise PageNotFound(f"the project has no definition of {view.saga} any more")
        downward = "downward" in request.query_params  # for a narrow page
        return picture_response(to_svg(build_saga_graph(definition, view), downward=downward))

    async def show_databases(self, request: Request, visitor: Visitor) -> Response:
        """The rows that the engine keeps of a saga in the databases of the project."""
        from saga_workers.location.traces import RecordedEffect, read_holdings, recorded_effects
        from saga_workers.relay.saga_events import events_of_saga

        view = await self._read(request)
        effects, events, holdings, problem = list[RecordedEffect](), list[OutboxEvent](), list[str](), None
        try:
            async with asyncio.timeout(_DATABASES_TIMEOUT):
                effects = await recorded_effects(self._project.settings, view.id)
                holdings = (await read_holdings(self._project.settings, view.id)).get(view.id, [])
                events = await events_of_saga(self._project.settings, view.id)
        except SagaError as error:
            problem = error.message
        except TimeoutError:
            problem = f"the databases have not answered within {_DATABASES_TIMEOUT:g} seconds"
        page = render(
            "databases.html",
            f"{view.id}: databases",
            visitor=visitor,
            place="sagas",
            view=view,
            effects=effects[:MAX_LISTED],
            omitted=max(0, len(effects) - MAX_LISTED),
            holdings=holdings,
            events=events,
            is_full=len(events) >= MAX_EVENTS,
            problem=problem,
        )
        return html_response(200, page)

    async def _read(self, request: Request) -> SagaView:
        saga_id = require_id(unquote(request.path_params["id"]))
        try:
            view = await read_view(self._project.locator, saga_id, timeout=QUERY_TIMEOUT)
        except UsageError as error:
            raise PageNotFound(error.message) from None
        return await self._project.require_shown(view)


def _title(step: StepView) -> str:
    return (step.name or step.id) + (" (skipped)" if step.state == "SKIPPED" else "")


_CALL_TITLES = {"do": "Called with", "undo": "Its undo called with", "confirm": "Its confirmation called with"}


def step_rows(view: SagaView, now: datetime) -> list[StepRow]:
    """The rows of the table of steps."""
    rows = []
    parked = {(each.step, each.op) for each in view.parked}  # whose calls are shown with what can be decided
    for step in rows_to_show(view.steps):
        if isinstance(step, str):
            rows.append(StepRow(note=step))
            continue
        text = error_text(step.error) if step.error and step.state not in ("DONE", "CONFIRMED", "CONFIRMING") else ""
        error = text if len(text) > MAX_INLINE and (step.id, "do") not in parked else ""
        calls = [(_CALL_TITLES[op], call) for op, call in failed_calls(step) if (step.id, op) not in parked]
        forward = "held back by a pause" if is_held_back(view, step) else forward_text(step, now)
        forward = "not reached" if is_unreached(view, step) else forward
        rows.append(StepRow(None, step, forward, undo_span(step)[0], error, calls))
    return rows
