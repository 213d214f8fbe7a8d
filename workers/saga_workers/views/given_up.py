"""Notifications, and events that start their saga again, which were given up although somebody waits for them.

The saga itself may have ended normally.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from temporalio.client import Client as Temporal

from saga_workers.views.notifications import exhausted_reasons, list_exhausted
from saga_workers.views.redeliveries import list_unserved, unserved_reasons
from sagas.protocol.saga_view import SagaView


async def list_given_up(temporal: Temporal, task_queue: str | None) -> AsyncIterator[str]:
    """The ids of sagas with something that was given up; one may come twice."""
    async for saga_id in list_exhausted(temporal, task_queue):
        yield saga_id
    async for saga_id in list_unserved(temporal, task_queue):
        yield saga_id


def given_up_reasons(view: SagaView) -> list[str]:
    """One message, with commands, for each part of this view that was given up."""
    return exhausted_reasons(view) + unserved_reasons(view)
