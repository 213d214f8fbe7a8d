"""The stuck sagas that the databases of a project tell of: without a run, or with old prepared transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from temporalio.service import RPCError

from saga_workers.location.locator import Locator
from saga_workers.location.refused_replies import ReplyRefusal, newest_refused_replies
from saga_workers.stuck.guard_scan import GuardScan
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.verdict import OpenSaga
from saga_workers.views.prepared import stuck_prepared
from sagas.errors import SagaError
from sagas.project import Project

T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds for each question that is put to all databases."""

Unanswered = SagaError | RPCError | TimeoutError
"""The errors of a database or server that does not answer, or not in time."""


@dataclass(frozen=True, slots=True)
class DatabaseTraces:
    """``lost``: the sagas with open effects that no run of them will end. ``prepared``: the reasons of prepared
    transactions, by saga id. ``refused``: the refused replies to commands, by saga id. ``complete``: the guards were
    read to their end.
    """

    lost: Sequence[OpenSaga] = ()
    prepared: Mapping[str, Sequence[str]] = field(default_factory=dict)
    complete: bool = False
    refused: Mapping[str, Sequence[ReplyRefusal]] = field(default_factory=dict)


async def read_database_traces(
    locator: Locator, project: Project, on_error: Callable[[str, Unanswered], None]
) -> DatabaseTraces:
    """Ask the databases of the project. ``on_error`` gets each question that is not answered."""
    scan = GuardScan(project.settings)
    lost, prepared, refused = await asyncio.gather(
        _in_time("sagas without a run", find_lost(locator, project.settings, scan=scan), on_error),
        _in_time("prepared transactions", stuck_prepared(project), on_error),
        _in_time("refused replies", newest_refused_replies(project.settings), on_error),
    )
    return DatabaseTraces(lost or (), prepared or {}, scan.complete, refused or {})


async def _in_time(what: str, reading: Awaitable[T], on_error: Callable[[str, Unanswered], None]) -> T | None:
    try:
        async with asyncio.timeout(TIMEOUT):
            return await reading
    except (SagaError, RPCError, TimeoutError) as error:
        on_error(what, error)
        return None


def unanswered_message(error: Unanswered) -> str:
    """The error in words."""
    return "the database or the server does not answer in time" if isinstance(error, TimeoutError) else error.message
