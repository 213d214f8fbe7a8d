"""How many sagas there are in each state, as Temporal's visibility store counts them: no run is read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from temporalio.client import Client as Temporal

from saga_workers.temporal.visibility_filter import time_literal
from saga_workers.views.saga_list import SagaFilter, visibility_query
from sagas.protocol.saga_view import STATES

_RPC_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class SagaCounts:
    """``states``: the number of runs by state, a completed saga that was undone in both of its states. ``started`` and
    ``ended``: in the last hour.
    """

    states: Mapping[str, int]
    started: int
    ended: int


async def count_sagas(temporal: Temporal, task_queue: str) -> SagaCounts:
    """Count the sagas of a project. Raises RPCError."""
    every = SagaFilter(task_queue=task_queue)
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    started, ended, *counts = await asyncio.gather(
        count_runs(temporal, replace(every, since=hour_ago)),
        count_runs(temporal, replace(every, where=f"CloseTime >= {time_literal(hour_ago)}")),
        *(count_runs(temporal, replace(every, states=(state,))) for state in STATES),
    )
    return SagaCounts(dict(zip(STATES, counts, strict=True)), started, ended)


async def count_runs(temporal: Temporal, criteria: SagaFilter) -> int:
    """The number of runs that match a filter. Raises RPCError."""
    return (await temporal.count_workflows(visibility_query(criteria), rpc_timeout=_RPC_TIMEOUT)).count
