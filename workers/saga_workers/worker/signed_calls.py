"""Signs the calls of sagas to activities, and performs no others: who reaches Temporal can schedule any activity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import activity, worker, workflow
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from saga_activities.temporal.attempt_errors import not_performed_error
from saga_activities.temporal.saga_activities import SagaActivities
from sagas.protocol.payloads import ANSWER_METADATA, CALL_HEADER, UNSIGNED_TYPE
from sagas.protocol.signed_content import answer_content, call_content, failure_content
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.batch_workflow import BatchWorkflow
from sagas.workflow.bulk_workflow import BulkWorkflow
from sagas.workflow.notify import NotifyWorkflow
from sagas.workflow.run_trust import RunTrust
from sagas.workflow.saga_workflow import SagaWorkflow


class SignedCallsInterceptor(worker.Interceptor):
    """Worker interceptor of both sides: the workflows of the engine sign, and its activity verifies.

    A signature is no part of what a replay compares, so keys may change while a saga runs. ``accepts_any``: calls
    without a signature are performed, too.
    """

    def __init__(self, keys: SigningKeys, *, accepts_any: bool) -> None:
        self._keys = keys
        self._accepts_any = accepts_any

        class SignedCallsInbound(worker.WorkflowInboundInterceptor):
            def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
                super().init(_Signing(outbound, keys))

        self._inbound = SignedCallsInbound

    def workflow_interceptor_class(
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[worker.WorkflowInboundInterceptor] | None:
        """Called by Temporal once per run."""
        return self._inbound

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        """Called by Temporal for each attempt."""
        return next if self._accepts_any else _Verifying(next, self._keys)


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
        if not isinstance(workflow.instance(), SagaWorkflow | BulkWorkflow | BatchWorkflow | NotifyWorkflow):
            return headers
        trust: RunTrust | None = getattr(workflow.instance(), "trust", None)
        if trust is not None and not trust.is_proven:
            return headers  # no worker performs it, until one has the key of the run
        info, [argument], seed = workflow.info(), args, "0" if trust is None else str(trust.seed)
        assert isinstance(argument, RawValue)
        with workflow.unsafe.sandbox_unrestricted():
            content = call_content(type, info.workflow_id, info.run_id, seed, argument.payload.data)
            signature = self._keys.sign("call", content)
        if signature is None:
            return headers
        signed = f"{signature['key']} {signature['hmac']} {info.run_id} {seed}"
        return {**headers, CALL_HEADER: Payload(metadata={"encoding": b"binary/plain"}, data=signed.encode())}


class _Verifying(worker.ActivityInboundInterceptor):
    def __init__(self, next: worker.ActivityInboundInterceptor, keys: SigningKeys) -> None:
        super().__init__(next)
        self._keys = keys

    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        ours = isinstance(getattr(input.fn, "__self__", None), SagaActivities)
        info = activity.info()
        if ours and info.in_workflow and not await self._is_signed(info, input):
            raise not_performed_error(
                f"{info.activity_type} is not signed with a key of this worker; set the same worker.definition_key for "
                "all workers of the project",
                info.attempt,
                UNSIGNED_TYPE,
            )
        signs = ours and info.in_workflow
        try:
            answer = await super().execute_activity(input)
        except ApplicationError as error:
            if signs and error.details and isinstance(detail := error.details[0], RawValue):
                failure = failure_content(error.type, final=error.non_retryable)
                _sign_answer(self._keys, info, input, detail, failure)
            raise
        if signs:
            _sign_answer(self._keys, info, input, answer)
        return answer

    async def _is_signed(self, info: activity.Info, input: worker.ExecuteActivityInput) -> bool:
        header = input.headers.get(CALL_HEADER)
        fields = _fields(header)
        [arguments] = input.args  # a dynamic activity has one: the list of all
        if len(fields) != 4 or len(arguments) != 1:
            return False
        key, hmac, run, seed = fields
        content = call_content(info.activity_type, info.workflow_id or "", run, seed, arguments[0].payload.data)
        if not self._keys.verifies("call", content, {"key": key, "hmac": hmac}):
            return False
        return run == info.workflow_run_id or run == await _original_run(info)


def _fields(header: Payload | None) -> list[str]:
    return [] if header is None else header.data.decode("utf-8", "replace").split(" ")


def _sign_answer(
    keys: SigningKeys,
    info: activity.Info,
    input: worker.ExecuteActivityInput,
    answer: RawValue,
    failure: Mapping[str, Any] | None = None,
) -> None:
    """Sign for the request, which is verified."""
    [[argument]], [key, *_, seed] = input.args, _fields(input.headers.get(CALL_HEADER))
    digest = hashlib.sha256(argument.payload.data).hexdigest()
    content = {"activity": info.activity_type, "workflow_id": info.workflow_id, "seed": int(seed), "request": digest}
    content |= failure or {}
    signature = keys.sign("answer", answer_content(content, answer.payload.data), preferred=key)
    if signature is not None:
        answer.payload.metadata[ANSWER_METADATA] = f"{signature['key']} {signature['hmac']}".encode()


async def _original_run(info: activity.Info) -> str:
    """The run that Temporal's reset has made this one from, with the calls that no worker had begun."""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=info.namespace,
        execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""),
        maximum_page_size=1,
    )
    history = await activity.client().workflow_service.get_workflow_execution_history(request)
    return history.history.events[0].workflow_execution_started_event_attributes.original_execution_run_id
