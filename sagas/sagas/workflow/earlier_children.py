"""Nested sagas that were started before: by another run of their parent, which was terminated, reset or deleted, or by
an attempt whose end this run has not seen.

Temporal tells the end of a child to the run that has started it. This run asks for it instead, through an activity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow

from sagas.protocol.payloads import NESTED_ACTIVITY, UNDO_SUFFIX
from sagas.workflow.engine_activity import perform_until_answered
from sagas.workflow.json_payloads import raw_json
from sagas.workflow.next_look import wait_until_next_look
from sagas.workflow.summaries import limit_summary
from sagas.workflow.waits import wait_until

_TIMEOUT = timedelta(seconds=30)


async def look_up_child(id: str, summary: str, *, root_start: str = "", undone: bool = False) -> dict[str, Any]:
    """The answer of ``saga.nested`` about the run that has this id; a notification needs only the id."""
    parent = workflow.info().workflow_id.removesuffix(UNDO_SUFFIX)
    # The time keeps the requests distinct: the history marks a forged answer by the digest of its request.
    request = {"id": id, "parent": parent, "root_start": root_start, "undone": undone, "asked_at": workflow.time()}
    return await perform_until_answered(NESTED_ACTIVITY, raw_json(request), summary, timeout=_TIMEOUT)


@dataclass
class EarlierChild:
    """A nested saga, or its undo, that this run has not started.

    ``open_run``: the ids of the workflow that runs it and of the first run of that, once known. A terminated saga that
    was continued runs as the workflow of its undo. ``root_start``: that of this run's saga, see
    :func:`sagas.protocol.origin.root_start_of`. ``cancelled``: it has just been asked to cancel, so its end may be
    near. ``undone``: it is to be undone, also if it was deleted.
    """

    saga_id: str
    root_start: str
    undone: bool = False
    open_run: tuple[str, str] | None = None
    cancelled: bool = False

    async def end(self, seen: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
        """Wait for its end, and return the last answer of ``saga.nested``; ``seen`` is called with each earlier one."""
        summary, began = f"has {self.saga_id} ended?", workflow.time()
        while True:
            answer = await look_up_child(self.saga_id, summary, root_start=self.root_start, undone=self.undone)
            if answer["state"] != "RUNNING":
                self.open_run = None
                return answer
            self.open_run = answer["workflow_id"], answer["run_id"]
            seen(answer)
            wait = wait_until_next_look(workflow.time() - began)
            if await wait_until(lambda: self.cancelled, timeout=wait, summary=limit_summary(summary)):
                self.cancelled, began = False, workflow.time()
