"""The inbox: what waits for a person, in groups with the same cause."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.serve.console.console_project import ConsoleProject
from saga_workers.serve.console.html_responses import html_response
from saga_workers.serve.console.recent import Recent
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import Visitor
from saga_workers.serve.limits import MAX_LISTED
from saga_workers.views.parked import ParkedList, group_parked, read_parked
from saga_workers.views.saga_list import SagaFilter

MAX_IDS = 20
"""Ids of a group that are listed."""

_MAX_AGE = 2.0
_WAIT = 12.0


class InboxPage:
    """The parked operations of the sagas that have waited for longest."""

    def __init__(self, project: ConsoleProject) -> None:
        self._project = project
        self._parked = Recent(self._read, _MAX_AGE)

    async def show(self, _: Request, visitor: Visitor) -> Response:
        parked_list, problem = await self._parked.get(_WAIT) or (None, None)
        operations = [] if parked_list is None else parked_list.operations
        groups = group_parked(operations)
        page = render(
            "inbox.html",
            "Inbox",
            visitor=visitor,
            place="inbox",
            groups=[group for group in groups if self._project.shown.include(group["saga"])],
            entries={(each.saga_id, each.definition_step, each.op, each.error): each.step for each in operations},
            parked_list=parked_list,
            max_ids=MAX_IDS,
            problem=problem,
        )
        return html_response(200, page)

    async def _read(self) -> tuple[ParkedList, str | None]:
        """The operations, and why they may not be all."""
        locator, criteria = self._project.locator, SagaFilter(task_queue=self._project.task_queue)
        try:
            return await read_parked(locator, criteria, nested=True, limit=MAX_LISTED), None
        except LedgerUnavailable:
            problem = "The ledger does not answer: these are only the sagas that Temporal still has."
            return await read_parked(locator.within_temporal(), criteria, nested=True, limit=MAX_LISTED), problem
