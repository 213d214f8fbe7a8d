"""Notifications, and events that start their saga again, which were given up although somebody waits for them.

The saga itself may have ended normally.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from temporalio.client import Client as Temporal

from saga_workers.location.locator import Locator
from saga_workers.views.notifications import exhausted_reasons, list_exhausted
from saga_workers.views.redeliveries import list_unserved, unserved_reasons
from saga_workers.views.saga_list import SagaFilter
from saga_workers.views.saga_view import read_view
from sagas.protocol.saga_view import SagaView


async def list_given_up(temporal: Temporal, task_queue: str | None) -> AsyncIterator[str]:
    """The ids of sagas with something that was given up; one may come twice."""
    async for saga_id in list_exhausted(temporal, task_queue):
        yield saga_id
    async for saga_id in list_unserved(temporal, task_queue):
        yield saga_id


async def read_given_up(locator: Locator, criteria: SagaFilter, limit: int) -> list[SagaView]:
    """The views of sagas with something that was given up, of the name and the task queue of the filter."""
    return await _read(locator, list_given_up(locator.temporal, criteria.task_queue), given_up_reasons, criteria, limit)


async def read_unserved(locator: Locator, criteria: SagaFilter, limit: int) -> list[SagaView]:
    """The views of sagas whose event is not served, of the name and the task queue of the filter."""
    return await _read(locator, list_unserved(locator.temporal, criteria.task_queue), unserved_reasons, criteria, limit)


async def _read(
    locator: Locator,
    ids: AsyncIterator[str],
    reasons: Callable[[SagaView], list[str]],
    criteria: SagaFilter,
    limit: int,
) -> list[SagaView]:
    views: dict[str, SagaView] = {}
    within_temporal = locator.within_temporal()
    async for saga_id in ids:
        if saga_id in views or (await within_temporal.locate(saga_id)).run is None:
            continue  # Temporal has deleted it, and nobody can start it again with its input
        view = await read_view(within_temporal, saga_id)
        if reasons(view) and criteria.saga in (None, view.saga):
            views[saga_id] = view
        if len(views) == limit:
            break
    return list(views.values())


def given_up_reasons(view: SagaView) -> list[str]:
    """One message, with commands, for each part of this view that was given up."""
    return exhausted_reasons(view) + unserved_reasons(view)
