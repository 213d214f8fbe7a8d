"""Sees which sagas have ended or are parked, for the ledger; never during a replay."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import FailureError
from temporalio.worker import ExecuteWorkflowInput, WorkflowInboundInterceptor

from saga_workers.ledger.writer import LedgerWriter, ObservedState
from saga_workers.temporal.run_interceptor import RunInterceptor
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.workflow.saga_workflow import SagaWorkflow

_LABELS = SearchAttributeKey.for_keyword_list("SagaLabels")


class LedgerInterceptor(RunInterceptor):
    """Worker interceptor that hands final and parked states to ``writer``."""

    def __init__(self, writer: LedgerWriter) -> None:
        super().__init__(lambda next: _LedgerInbound(next, writer))


class _LedgerInbound(WorkflowInboundInterceptor):
    def __init__(self, next: WorkflowInboundInterceptor, writer: LedgerWriter) -> None:
        super().__init__(next)
        self._writer = writer

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        saga = workflow.instance()
        if not isinstance(saga, SagaWorkflow):
            return await super().execute_workflow(input)
        saga.state_observer = _ParkedStates(saga, self._writer)
        try:
            result = await super().execute_workflow(input)
        except FailureError:
            _record_end(saga, self._writer)
            raise
        _record_end(saga, self._writer)
        return result


class _ParkedStates:
    """Records that a saga is parked, and that it has gone on."""

    def __init__(self, saga: SagaWorkflow, writer: LedgerWriter) -> None:
        self._saga = saga
        self._writer = writer
        self._was_parked = False

    def __call__(self, state: str) -> None:
        is_parked, was_parked = state == "PARKED", self._was_parked
        self._was_parked = is_parked
        if (is_parked or was_parked) and not workflow.unsafe.is_replaying():
            self._writer.add(_observed(self._saga, self._saga.document()))


def _record_end(saga: SagaWorkflow, writer: LedgerWriter) -> None:
    if saga.final_document is not None and not workflow.unsafe.is_replaying():
        machine = saga.machine
        assert machine is not None
        writer.add(_observed(saga, saga.final_document, machine.snapshot() if machine.undo_refusal is None else None))


def _observed(saga: SagaWorkflow, document: Any, snapshot: Any = None) -> ObservedState:
    info, machine = workflow.info(), saga.machine
    assert machine is not None
    labels = None
    if not info.workflow_id.endswith(UNDO_SUFFIX):
        written = info.typed_search_attributes.get(_LABELS) or ()
        labels = dict(label.split("=", 1) for label in written if "=" in label) or document["labels"]
    return ObservedState(
        saga_id=info.workflow_id.removesuffix(UNDO_SUFFIX),
        document=document,
        labels=labels,
        at=workflow.time(),
        input=machine.input,
        snapshot=snapshot,
        root_start=machine.origin().root_start,
    )
