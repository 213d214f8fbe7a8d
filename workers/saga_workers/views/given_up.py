"""Notifications, and events that start their saga again, which were given up although somebody waits for them.

The saga itself may have ended normally.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

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


async def read_unserved(locator: Locator, criteria: SagaFilter, limit: int) -> list[SagaView]:
    """The views of sagas whose event is not served, of the name and the task queue of the filter."""
    views: list[SagaView] = []
    within_temporal = locator.within_temporal()
    async for saga_id in list_unserved(locator.temporal, criteria.task_queue):
        if (await within_temporal.locate(saga_id)).run is None:
            continue  # Temporal has deleted it, and nobody can start it again with its input
        view = await read_view(within_temporal, saga_id)
        if unserved_reasons(view) and criteria.saga in (None, view.saga):
            views.append(view)
        if len(views) == limit:
            break
    return views


def given_up_reasons(view: SagaView) -> list[str]:
    """One message, with commands, for each part of this view that was given up."""
    return exhausted_reasons(view) + unserved_reasons(view)
