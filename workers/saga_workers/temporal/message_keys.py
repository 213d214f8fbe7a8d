"""Makes sure that the worker of a run has the key with which this process encrypts, before it is sent a signal.

A worker ignores a signal that it cannot decrypt, since any client can invent a key: such a signal would be lost.
"""

from __future__ import annotations

import time
from datetime import timedelta

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.payload_codec import EncryptingCodec
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers
from sagas.errors import RefusedError
from sagas.workflow.undecoded import READS_QUERY

_QUERY_TIMEOUT = timedelta(seconds=5)

_ANSWER_HOLDS = 60.0
"""Seconds for which the answer of one worker counts for all runs of its task queue."""


class KeyNotShared(RefusedError):
    """The worker of a run lacks the key with which this process encrypts. Later it may have it."""


class MessageKeys:
    """The task queues whose workers have lately read what this process encrypts."""

    def __init__(self) -> None:
        self._read_until: dict[str, float] = {}

    async def require(self, temporal: Temporal, run: RunInfo) -> None:
        """Raise KeyNotShared if the worker of the run lacks the key. If none answers, nobody knows that."""
        if time.monotonic() < self._read_until.get(run.task_queue, 0.0):
            return
        if await require_key_at_worker(temporal, run):
            self._read_until[run.task_queue] = time.monotonic() + _ANSWER_HOLDS


async def require_key_at_worker(temporal: Temporal, run: RunInfo) -> bool:
    """Raise KeyNotShared if the worker of the run lacks the key; False if none answers.

    A worker that does not have the key of the run's own input answers nothing, and takes no signal either.
    """
    if (key := encrypting_key(temporal)) is None:
        return True
    if not await count_pollers(temporal, run.task_queue):
        return False
    handle = temporal.get_workflow_handle(run.id, run_id=run.run_id)
    try:
        lacks = await handle.query(READS_QUERY, run.run_id, rpc_timeout=_QUERY_TIMEOUT) is not None
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return False
    except UNREADABLE_PAYLOAD:
        lacks = True  # only null is sent in clear, and the answer of such a worker has a key that is not here
    if lacks:
        raise KeyNotShared(
            f"the worker of {run.id} does not have the key {key} with which this process encrypts, and would ignore "
            "the signal",
            help="give the key to all workers first, and restart them; nothing was sent",
        )
    return True


def encrypting_key(temporal: Temporal) -> str | None:
    """The id of the key with which this process encrypts what it sends; None without `[codec]`."""
    codec = temporal.data_converter.payload_codec
    return codec.key_id if isinstance(codec, EncryptingCodec) else None
