"""Signs the calls of sagas to activities and the answers, and performs no unsigned call.

Who reaches Temporal can schedule any activity, and answer one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import activity, worker, workflow
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from saga_activities.temporal.activity_attempt import attempt_number, note_keys
from saga_activities.temporal.attempt_errors import not_performed_error
from saga_activities.temporal.saga_activities import SagaActivities
from saga_workers.temporal.run_interceptor import RunInterceptor
from sagas.protocol.payloads import ANSWER_METADATA, CALL_HEADER, UNSIGNED_TYPE
from sagas.protocol.signed_content import (
    CallSignature,
    answer_content,
    call_content,
    failure_content,
    signed_json,
    write_answer_signature,
)
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.batch_workflow import BatchWorkflow
from sagas.workflow.bulk_workflow import BulkWorkflow
from sagas.workflow.notify import NotifyWorkflow
from sagas.workflow.redelivery import RedeliveryWorkflow
from sagas.workflow.run_trust import RunTrust
from sagas.workflow.saga_workflow import SagaWorkflow
from sagas.workflow.schedule_workflow import ScheduledStart


class SignedActivitiesInterceptor(RunInterceptor):
    """Worker interceptor: workflows of the engine sign calls, and its activity verifies them and signs answers.

    A signature is not part of what a replay compares, so keys may change while a saga runs. ``accepts_any``: calls
    without a signature are also performed.
    """

    def __init__(self, keys: SigningKeys, *, accepts_any: bool) -> None:
        super().__init__(lambda next: _SigningInbound(next, keys))
        self._keys = keys
        self._accepts_any = accepts_any

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        """Called by Temporal for each attempt."""
        return next if self._accepts_any else _Verifying(next, self._keys)


class _SigningInbound(worker.WorkflowInboundInterceptor):
    def __init__(self, next: worker.WorkflowInboundInterceptor, keys: SigningKeys) -> None:
        super().__init__(next)
        self._keys = keys

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_Signing(outbound, self._keys))


class _Signing(worker.WorkflowOutboundInterceptor):
    def __init__(self, next: worker.WorkflowOutboundInterceptor, keys: SigningKeys) -> None:
        super().__init__(next)
        self._keys = keys

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = self._signed(input.activity, input.args, input.headers)
        return super().start_activity(input)

    def start_local_activity(self, input: worker.StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = self._signed(input.activity, input.args, input.headers)
        return super().start_local_activity(input)

    def _signed(self, type: str, args: Sequence[Any], headers: Mapping[str, Payload]) -> Mapping[str, Payload]:
        # The user's own workflows on this worker do not speak for the engine.
        engine = SagaWorkflow | BulkWorkflow | BatchWorkflow | NotifyWorkflow | ScheduledStart | RedeliveryWorkflow
        if not isinstance(workflow.instance(), engine):
            return headers
        trust: RunTrust | None = getattr(workflow.instance(), "trust", None)
        if trust is not None:
            trust.calls += 1  # also while nothing is signed: a worker that has the key must count the same
            if not trust.is_proven:
                return headers  # no worker performs it, until one has the key of the run
        info, [argument], call = workflow.info(), args, "0" if trust is None else trust.latest_call
        assert isinstance(argument, RawValue)
        with workflow.unsafe.sandbox_unrestricted():
            content = call_content(type, info.workflow_id, info.run_id, call, argument.payload.data)
            signature = self._keys.sign("call", content)
        if signature is None:
            return headers
        header = CallSignature(**signature, run_id=info.run_id, call=call).to_header()
        return {**headers, CALL_HEADER: Payload(metadata={"encoding": b"binary/plain"}, data=header)}


class _Verifying(worker.ActivityInboundInterceptor):
    def __init__(self, next: worker.ActivityInboundInterceptor, keys: SigningKeys) -> None:
        super().__init__(next)
        self._keys = keys

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        info = activity.info()
        if not (info.in_workflow and isinstance(getattr(input.fn, "__self__", None), SagaActivities)):
            return await super().execute_activity(input)
        signature = await self._verified_signature(info, input)
        if signature is None:
            raise not_performed_error(
                f"{info.activity_type} is not signed with a key of this worker; set the same worker.definition_key for "
                "all workers of the project",
                attempt_number(info),
                UNSIGNED_TYPE,
            )
        note_keys.set(_KeysOfCall(self._keys, _answer_content(info, input, signature), signature.key))
        try:
            answer = await super().execute_activity(input)
        except ApplicationError as error:
            if error.details and isinstance(detail := error.details[0], RawValue):
                failure = failure_content(error.type, final=error.non_retryable)
                _sign_answer(self._keys, info, input, signature, detail, failure)
            raise
        _sign_answer(self._keys, info, input, signature, answer)
        return answer

    async def _verified_signature(
        self, info: activity.Info, input: worker.ExecuteActivityInput
    ) -> CallSignature | None:
        """The signature of the call; None if it has none of this worker's keys for this call of this run."""
        header = input.headers.get(CALL_HEADER)
        call = None if header is None else CallSignature.from_header(header.data)
        [arguments] = input.args  # a dynamic activity has one: the list of all
        if call is None or len(arguments) != 1:
            return None
        data = arguments[0].payload.data
        content = call_content(info.activity_type, info.workflow_id or "", call.run_id, call.call, data)
        if not self._keys.verifies("call", content, call.signature):
            return None
        return call if call.run_id == info.workflow_run_id or call.run_id == await _original_run(info) else None


def _sign_answer(
    keys: SigningKeys,
    info: activity.Info,
    input: worker.ExecuteActivityInput,
    call: CallSignature,
    answer: RawValue,
    failure: Mapping[str, Any] | None = None,
) -> None:
    """Sign the answer to the call, whose signature is verified."""
    content = {**_answer_content(info, input, call), **(failure or {})}
    signature = keys.sign("answer", answer_content(content, answer.payload.data), preferred=call.key)
    if signature is not None:
        answer.payload.metadata[ANSWER_METADATA] = write_answer_signature(signature)


def _answer_content(info: activity.Info, input: worker.ExecuteActivityInput, call: CallSignature) -> dict[str, Any]:
    """See :func:`sagas.protocol.signed_content.answer_content`."""
    [[argument]] = input.args
    digest = hashlib.sha256(argument.payload.data).hexdigest()
    return {"activity": info.activity_type, "workflow_id": info.workflow_id, "call": call.call, "request": digest}


class _KeysOfCall:
    """The keys for the notes of the attempts of one call."""

    def __init__(self, keys: SigningKeys, content: Mapping[str, Any], preferred: str) -> None:
        self._keys = keys
        self._content = content
        self._preferred = preferred

    def sign(self, note: Mapping[str, Any]) -> Mapping[str, str] | None:
        return self._keys.sign("note", signed_json({**self._content, **note}), preferred=self._preferred)

    def verifies(self, note: Mapping[str, Any], signature: Any) -> bool:
        return self._keys.verifies("note", signed_json({**self._content, **note}), signature)


async def _original_run(info: activity.Info) -> str:
    """The run that Temporal's reset has made this one from, with the calls that no worker had begun."""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=info.namespace,
        execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""),
        maximum_page_size=1,
    )
    history = await activity.client().workflow_service.get_workflow_execution_history(request)
    return history.history.events[0].workflow_execution_started_event_attributes.original_execution_run_id
