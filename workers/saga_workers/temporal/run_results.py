"""Waits for the result of a run."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import WorkflowHandle

from saga_activities.concurrency import Backoff

_ASKED_AGAIN = Backoff(1.0, 10.0)
"""Seconds after which Temporal is asked again."""


async def wait_for_result(handle: WorkflowHandle[Any, Any]) -> Any:
    """The result of the newest run of the handle's id, as soon as there is one; with the errors of `result`.

    A server that lacks CPU sometimes answers a long poll that waits for the end only when the poll expires, after 20
    seconds. A new poll sees at once that the run has ended.
    """
    for seconds in _ASKED_AGAIN:
        try:
            async with asyncio.timeout(seconds):
                return await handle.result()
        except TimeoutError:
            continue
    raise AssertionError("unreachable")
