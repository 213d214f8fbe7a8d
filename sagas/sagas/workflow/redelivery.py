"""Starts a compensated saga again, for the event that had started it: `redeliver` of a trigger.

The saga orders it as it ends, as a run of its own with a signed order, which waits and then has a worker start the next
generation. That starts nothing if somebody else has done so meanwhile, however often it is asked. Temporal's cancel of
the run ends it, as `saga cancel` does. It fails if the start is refused, or if no start is left, so that the Web UI and
`saga list --stuck` show the reason.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.common import RawValue

from sagas.protocol.messages import Redeliver
from sagas.protocol.redelivery_names import REDELIVER_ACTIVITY, REDELIVERY_MEMO, REDELIVERY_WORKFLOW
from sagas.workflow.abandoned_runs import AbandonedRun
from sagas.workflow.client_fields import LONGEST_WAIT, number, read_client_value, text, whole_number
from sagas.workflow.engine_activity import perform_until_answered
from sagas.workflow.failures import SagaApplicationError, refused_error
from sagas.workflow.json_payloads import NO_INPUT, raw_json
from sagas.workflow.next_look import wait_until_next_look
from sagas.workflow.repeated_start import MAX_GENERATION
from sagas.workflow.run_start import refuse_foreign_id
from sagas.workflow.run_trust import RunTrust, is_signed_message, require_key
from sagas.workflow.summaries import run_summary
from sagas.workflow.task_set import CommandContext
from sagas.workflow.waits import wait_until

_TASK = "redelivery"

_TIMEOUT = timedelta(seconds=60)

RedeliveryOutcome = Literal["started", "refused", "exhausted"]


class Redeliveries:
    """Orders the next start of one run of a saga."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self.is_starting = False
        """True until Temporal has started the run that does it."""

    def send(self, command: Redeliver) -> None:
        self.is_starting = True
        self._context.tasks.start(_TASK, self._start(command))

    async def _start(self, command: Redeliver) -> None:
        info = workflow.info()
        order = {
            "saga": info.workflow_type,
            "saga_id": info.workflow_id,
            "generation": command.generation,
            "intervals": list(command.intervals),
            "passed": command.passed,
        }
        number, most = command.passed + 1, len(command.intervals)
        what = f"{info.workflow_id} is {'not ' * (number > most)}started again, {min(number, most)} of {most}"
        run = AbandonedRun(REDELIVERY_WORKFLOW, "redelivery", command.workflow_id, run_summary(f"↻ {what}"), {})
        if (problem := await run.start(self._context.throttle, order)) is not None:
            workflow.logger.warning("%s is not started again for its event: %s", info.workflow_id, problem)
        self.is_starting = False
        self._context.tasks.discard(_TASK)


@workflow.defn(name=REDELIVERY_WORKFLOW)
class RedeliveryWorkflow:
    """Starts the next generation of one saga after a wait, unless somebody has started or cancelled it before."""

    def __init__(self) -> None:
        self.trust: RunTrust | None = None
        """Set by the worker before the run."""
        self.outcome: tuple[str, RedeliveryOutcome] | None = None
        """The name of the saga and what has become of its next start, for metrics; None until then."""
        self._cancelled = False

    @workflow.run
    async def run(self, input: RawValue = NO_INPUT) -> Any:
        try:
            refuse_foreign_id(needs_owner=True)
            expected = f"the input of {REDELIVERY_WORKFLOW} is not an order of a saga; start the saga"
            order = read_client_value(expected, input.payload, _checked_order)
            self._refuse_forged(order)
        except SagaApplicationError:
            workflow.upsert_memo({REDELIVERY_MEMO: None})  # it may have come with the words of a redelivery
            raise
        work = asyncio.create_task(self._serve(order))
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.done():
                    raise
                self._cancelled = True

    def _refuse_forged(self, order: dict[str, Any]) -> None:
        """Raise SagaApplicationError unless a saga of this project has signed this order for this run.

        Raises KeyMissing, which Temporal repeats, for a few minutes if another worker may have the key.
        """
        require_key(self.trust, "order", order.get("signature"), "the order of the redelivery")
        if not is_signed_message("redelivery", [workflow.info().workflow_id], order):
            raise refused_error("the redelivery is not signed with the key of the project for this id")

    async def _serve(self, order: dict[str, Any]) -> dict[str, Any]:
        """``started``, and otherwise with ``ended`` why not."""
        saga_id, request = order["saga_id"], {name: order[name] for name in _FIELDS}
        if order["passed"] == len(order["intervals"]):
            self.outcome = (order["saga"], "exhausted")
            self._note_end(f"the last of {order['passed']} further starts was compensated")
            raise refused_error("its event starts the saga no more")
        await self._wait(timedelta(seconds=float(order["intervals"][order["passed"]])))
        began = workflow.time()
        while not self._cancelled:
            answer = await perform_until_answered(
                REDELIVER_ACTIVITY, raw_json(request), f"start {saga_id} again", timeout=_TIMEOUT
            )
            if (refusal := answer.get("refused")) is not None:
                self.outcome = (order["saga"], "refused")
                self._note_end(f"its start was refused: {refusal}")
                raise refused_error(str(refusal))
            if not answer.get("open"):
                if started := bool(answer.get("started")):
                    self.outcome = (order["saga"], "started")
                return self._result(started=started, ended=answer.get("ended"))
            await self._wait(wait_until_next_look(workflow.time() - began))
        return self._result(started=False, ended=f"cancelled: {workflow.cancellation_reason() or 'in Temporal'}")

    async def _wait(self, length: timedelta) -> None:
        """Wait, or until a cancel."""
        await wait_until(lambda: self._cancelled, timeout=length, summary="until it is started again")

    def _result(self, *, started: bool, ended: Any) -> dict[str, Any]:
        if ended is not None:
            self._note_end(str(ended))
        return {"started": started, "ended": ended}

    def _note_end(self, why: str) -> None:
        workflow.upsert_memo({REDELIVERY_MEMO: {"ended": why}})


_FIELDS = ("saga", "saga_id", "generation", "intervals", "passed")


def _checked_order(order: Any) -> dict[str, Any]:
    for field in ("saga", "saga_id"):
        text(order[field])
    whole_number(order["generation"], 1, MAX_GENERATION)
    intervals = [number(seconds, 0, LONGEST_WAIT) for seconds in order["intervals"]]
    whole_number(order["passed"], 0, len(intervals))
    return order
