"""The inbox: what waits for a person, in groups with the same cause."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.serve.console.asked_sagas import asked_in, criteria_of
from saga_workers.serve.console.console_project import ConsoleProject
from saga_workers.serve.console.html_responses import html_response
from saga_workers.serve.console.recent import Recent
from saga_workers.serve.console.templates import render
from saga_workers.serve.console.visitors import Visitor
from saga_workers.serve.limits import MAX_LISTED
from saga_workers.views.parked import ParkedList, group_parked, read_parked
from sagas.definition.saga_ids import workflow_id_problem

MAX_IDS = 20
"""Ids of a group that are listed."""

_MAX_AGE = 2.0
_WAIT = 12.0


class InboxPage:
    """The parked operations of the sagas that have waited for longest."""

    def __init__(self, project: ConsoleProject) -> None:
        self._project = project
        self._parked = Recent(self._read, _MAX_AGE)

    async def show(self, request: Request, visitor: Visitor) -> Response:
        asked = asked_in(request.query_params)
        if any(asked.values()):
            parked_list, problem = await read_asked(self._project, asked)
        else:
            parked_list, problem = await self._parked.get(_WAIT) or (None, None)
        listed = [] if parked_list is None else parked_list.operations
        own = await self._project.shown.among((each.saga, each.saga_id) for each in listed)
        operations = [each for each in listed if each.saga_id in own]
        groups = group_parked(operations)
        page = render(
            "inbox.html",
            "Inbox",
            visitor=visitor,
            place="inbox",
            groups=[_with_cause(group) for group in groups],
            entries={(each.saga_id, each.definition_step, each.op, each.error): each.step for each in operations},
            parked_list=parked_list,
            max_ids=MAX_IDS,
            problem=problem,
            asked=asked,
            is_search=any(asked.values()),
        )
        return html_response(200, page)

    async def _read(self) -> tuple[ParkedList, str | None]:
        return await read_asked(self._project, asked_in({}))


def cause_id(saga: str, step: str, op: str, error: str) -> str:
    """A short text for the cause for which operations wait: a message may be too long for an address."""
    return hashlib.sha256("\0".join((saga, step, op, error)).encode(errors="replace")).hexdigest()[:32]


def _with_cause(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**group, "cause": cause_id(group["saga"], group["step"], group["op"], group["error"])}


async def read_asked(project: ConsoleProject, asked: Mapping[str, str]) -> tuple[ParkedList, str | None]:
    """The parked operations of the sagas of a search, and why they may not be all. Raises BadRequest, UsageError."""
    if asked["q"] and workflow_id_problem(asked["q"]) is not None:
        return ParkedList((), {}), None  # no id begins so, and a database may refuse the text
    criteria, locator = replace(criteria_of(asked, project.task_queue), states=()), project.locator
    try:
        return await read_parked(locator, criteria, nested=True, limit=MAX_LISTED), None
    except LedgerUnavailable:
        problem = "The ledger does not answer: these are only the sagas that Temporal still has."
        return await read_parked(locator.within_temporal(), criteria, nested=True, limit=MAX_LISTED), problem
