"""The list of sagas, and the search in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.serve.console.asked_sagas import PERIODS, asked_in, criteria_of
from saga_workers.serve.console.console_project import ConsoleProject
from saga_workers.serve.console.html_responses import html_response
from saga_workers.serve.console.templates import inbox_path, render
from saga_workers.serve.console.visitors import Visitor
from saga_workers.serve.limits import MAX_LISTED, QUERY_TIMEOUT
from saga_workers.serve.project_sagas import names_of
from saga_workers.views.saga_list import query_sagas
from saga_workers.views.saga_view import read_view
from sagas.definition.saga_ids import workflow_id_problem
from sagas.errors import UsageError
from sagas.protocol.saga_view import STATES, SagaView

LIST_TIMEOUT = 8.0
"""Seconds for the list: of a saga whose run was terminated also the history is read."""


class SearchPage:
    """The newest sagas that match a search, also by the first characters of an id."""

    def __init__(self, project: ConsoleProject) -> None:
        self._project = project

    async def show(self, request: Request, visitor: Visitor) -> Response:
        asked = asked_in(request.query_params)
        views, problem = await self._list(asked)
        if asked["q"] and all(view.id != asked["q"] for view in views):
            views = [*await self._of_this_id(asked), *views]
        own = await self._project.shown.among((view.saga, view.id) for view in views)
        shown = [view for view in views if view.id in own]
        page = render(
            "sagas.html",
            "Sagas",
            visitor=visitor,
            place="sagas",
            asked=asked,
            views=shown,
            limit=MAX_LISTED,
            is_full=len(views) >= MAX_LISTED,
            names=names_of(await self._project.shown.definitions(), shown),
            states=STATES,
            periods=PERIODS,
            problem=problem,
            waiting=inbox_path({**asked, "state": ""}) if visitor.may_operate else None,
        )
        return html_response(200, page)

    async def _list(self, asked: Mapping[str, str]) -> tuple[list[SagaView], str | None]:
        """The sagas, and why they may not be all. Raises UsageError for a state that is none."""
        criteria, begin, views = criteria_of(asked, self._project.task_queue), asked["q"], list[SagaView]()
        if begin and workflow_id_problem(begin) is not None:
            return [], None  # no id begins so, and a database may refuse the text
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                async for view in query_sagas(self._project.locator, criteria, limit=MAX_LISTED):
                    if view.id.startswith(begin):
                        views.append(view)
        except TimeoutError:
            return views, f"These are only the newest, which were read in {LIST_TIMEOUT:g} seconds. Search for fewer."
        except LedgerUnavailable:
            return views, "The ledger does not answer: these are only the sagas that Temporal still has."
        return views, None

    async def _of_this_id(self, asked: Mapping[str, str]) -> list[SagaView]:
        """The saga with exactly this id, wherever it lives, if the rest of the search does not exclude it."""
        if workflow_id_problem(asked["q"]) is not None:
            return []
        try:
            view = await read_view(self._project.locator, asked["q"], timeout=QUERY_TIMEOUT)
        except (UsageError, LedgerUnavailable):
            return []
        fits = asked["saga"] in ("", view.saga) and asked["state"] in ("", view.state)
        return [view] if fits and not asked["since"] and not asked["label"] else []
