"""Runs of the engine that a saga starts and leaves alone: they may outlive it, as notifications do.

Each is an abandoned child workflow with a signed order as its input. The saga only waits until Temporal has started it:
otherwise the saga could close first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import WorkflowAlreadyStartedError

from sagas.definition.saga_ids import workflow_id_problem
from sagas.protocol.payloads import second_workflow_id
from sagas.workflow.earlier_children import look_up_child
from sagas.workflow.limits import PayloadThrottle, to_payload
from sagas.workflow.run_trust import MessagePurpose, signed_message


@dataclass(frozen=True, slots=True)
class AbandonedRun:
    """A run of the workflow ``type`` with the ``id``, or another one if somebody else has that. ``purpose``: of the
    signature of its order.
    """

    type: str
    purpose: MessagePurpose
    id: str
    summary: str
    memo: Mapping[str, Any]

    async def start(self, throttle: PayloadThrottle, order: Mapping[str, Any]) -> str | None:
        """Start it; returns why that cannot be, None if it is there."""
        problem = None
        for id in _workflow_ids(self.id):
            payload = to_payload(signed_message(self.purpose, [id], order), f"the order of the {self.purpose}")
            problem = await self._start_as(id, throttle, payload)
            if problem is None:
                return None
            workflow.logger.warning("%s is not started: %s", id, problem)
        return problem

    async def _start_as(self, id: str, throttle: PayloadThrottle, payload: Payload) -> str | None:
        if (problem := workflow_id_problem(id)) is not None:
            return problem
        while True:
            await throttle.wait_for_room(len(payload.data))
            try:
                await workflow.start_child_workflow(
                    self.type,
                    RawValue(payload),
                    id=id,
                    static_summary=self.summary,
                    memo=self.memo,
                    parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                    cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                )
                return None
            except WorkflowAlreadyStartedError:
                answer = await look_up_child(id, f"is {id} a {self.purpose}?")
                if answer["state"] == "OWN":
                    workflow.logger.info("%s is already running", id)
                    return None
                if answer["state"] == "FOREIGN":
                    return f"{answer['holder']} has the id {id}"


def _workflow_ids(first: str) -> Iterator[str]:
    """The workflow ids of the run, each for the case that a run of somebody else has those before it."""
    yield first
    yield second_workflow_id(first)
    # Nobody can guess this one. After a reset it is another one; what the run does is known by the order.
    yield f"{first}.{workflow.uuid4().hex}"
