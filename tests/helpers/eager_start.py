"""A stranger who completes workflow tasks: Temporal hands the first one of a run to the client that starts it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message as Protobuf
from temporalio.api.command.v1 import (
    Command,
    CompleteWorkflowExecutionCommandAttributes,
    ContinueAsNewWorkflowExecutionCommandAttributes,
    ModifyWorkflowPropertiesCommandAttributes,
    ProtocolMessageCommandAttributes,
    ScheduleActivityTaskCommandAttributes,
    UpsertWorkflowSearchAttributesCommandAttributes,
)
from temporalio.api.common.v1 import Memo, Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import CommandType, TaskQueueKind, UpdateWorkflowExecutionLifecycleStage
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes
from temporalio.api.protocol.v1 import Message
from temporalio.api.taskqueue.v1 import StickyExecutionAttributes, TaskQueue
from temporalio.api.update.v1 import Acceptance, Input, Meta, Outcome, Request, Response, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollWorkflowTaskQueueRequest,
    RespondActivityTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    StartWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)
from temporalio.client import Client as Temporal
from temporalio.common import TypedSearchAttributes
from temporalio.converter import encode_search_attributes


def json_payload(value: Any) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())


async def start(
    temporal: Temporal, type: str, id: str, queue: str, input: Payload, headers: Mapping[str, Payload], *, eager: bool
) -> Any:
    """Start a run as any client can; with ``eager`` the answer has its first workflow task."""
    request = StartWorkflowExecutionRequest(
        namespace=temporal.namespace,
        workflow_id=id,
        workflow_type=WorkflowType(name=type),
        task_queue=TaskQueue(name=queue),
        input=Payloads(payloads=[input]),
        request_id=str(uuid.uuid4()),
        identity="stranger",
        request_eager_execution=eager,
    )
    for name, payload in headers.items():
        request.header.fields[name].CopyFrom(payload)
    return await temporal.workflow_service.start_workflow_execution(request)


async def complete_first_task(temporal: Temporal, started: Any, commands: Sequence[Command] = ()) -> None:
    token = started.eager_workflow_task.task_token
    assert token, "Temporal has sent no task"
    await temporal.workflow_service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(
            task_token=token, namespace=temporal.namespace, identity="stranger", commands=commands
        )
    )


def upsert(attributes: TypedSearchAttributes) -> Command:
    """The command that writes search attributes of the run."""
    command = UpsertWorkflowSearchAttributesCommandAttributes()
    encode_search_attributes(attributes, command.search_attributes)
    return Command(
        command_type=CommandType.COMMAND_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
        upsert_workflow_search_attributes_command_attributes=command,
    )


class KeptRun:
    """A run of the project's task queue whose later workflow tasks come to the stranger, who has its sticky queue."""

    def __init__(self, temporal: Temporal, id: str, queue: str) -> None:
        self._temporal, self._id = temporal, id
        self._own = TaskQueue(name=f"kept-{uuid.uuid4()}", kind=TaskQueueKind.TASK_QUEUE_KIND_STICKY, normal_name=queue)

    async def complete_first_task(self, started: Any, commands: Sequence[Command] = ()) -> None:
        """Complete the task that came with an eager start, and keep the run."""
        await self._complete(started.eager_workflow_task.task_token, commands=commands)

    async def complete_update(self, name: str, values: Sequence[Payload]) -> None:
        """Send an update to the run, and complete it with these values, of which a worker gives one."""
        sending = asyncio.create_task(self._update(name))
        poll = PollWorkflowTaskQueueRequest(
            namespace=self._temporal.namespace, task_queue=self._own, identity="stranger"
        )
        while not (task := await self._temporal.workflow_service.poll_workflow_task_queue(poll)).messages:
            if task.task_token:  # it was scheduled for something else
                await self._complete(task.task_token)
        [asked] = task.messages
        request = Request()
        asked.body.Unpack(request)
        accepted = Acceptance(
            accepted_request_message_id=asked.id,
            accepted_request_sequencing_event_id=asked.event_id,
            accepted_request=request,
        )
        completed = Response(meta=request.meta, outcome=Outcome(success=Payloads(payloads=values)))
        messages = [_message(asked.protocol_instance_id, body) for body in (accepted, completed)]
        await self._complete(task.task_token, messages)
        await sending

    async def _update(self, name: str) -> None:
        stage = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
        update = UpdateWorkflowExecutionRequest(
            namespace=self._temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=self._id),
            request=Request(meta=Meta(update_id=str(uuid.uuid4()), identity="stranger"), input=Input(name=name)),
            wait_policy=WaitPolicy(lifecycle_stage=stage),
        )
        await self._temporal.workflow_service.update_workflow_execution(update)

    async def _complete(
        self, token: bytes, messages: Sequence[Message] = (), *, commands: Sequence[Command] = ()
    ) -> None:
        assert token, "Temporal has sent no task"
        sticky = StickyExecutionAttributes(worker_task_queue=self._own)
        sticky.schedule_to_start_timeout.FromSeconds(3600)
        await self._temporal.workflow_service.respond_workflow_task_completed(
            RespondWorkflowTaskCompletedRequest(
                task_token=token,
                namespace=self._temporal.namespace,
                identity="stranger",
                commands=[*commands, *(_send(message) for message in messages)],
                messages=messages,
                sticky_attributes=sticky,
            )
        )


def _message(instance: str, body: Protobuf) -> Message:
    packed = AnyMessage()
    packed.Pack(body)
    return Message(id=str(uuid.uuid4()), protocol_instance_id=instance, body=packed)


def _send(message: Message) -> Command:
    return Command(
        command_type=CommandType.COMMAND_TYPE_PROTOCOL_MESSAGE,
        protocol_message_command_attributes=ProtocolMessageCommandAttributes(message_id=message.id),
    )


async def complete_next_task(temporal: Temporal, queue: str, commands: Sequence[Command]) -> None:
    """Take the next workflow task of this queue, as any client can, and complete it with these commands."""
    request = PollWorkflowTaskQueueRequest(
        namespace=temporal.namespace, task_queue=TaskQueue(name=queue), identity="stranger"
    )
    task = await temporal.workflow_service.poll_workflow_task_queue(request)
    assert task.task_token, "Temporal has sent no task"
    await temporal.workflow_service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(
            task_token=task.task_token, namespace=temporal.namespace, identity="stranger", commands=commands
        )
    )


def upsert_memo(name: str, value: Any) -> Command:
    """The command of a run that sets a field of its memo."""
    memo = Memo(fields={name: json_payload(value)})
    return Command(
        command_type=CommandType.COMMAND_TYPE_MODIFY_WORKFLOW_PROPERTIES,
        modify_workflow_properties_command_attributes=ModifyWorkflowPropertiesCommandAttributes(upserted_memo=memo),
    )


def call_again(call: ActivityTaskScheduledEventAttributes, queue: str) -> Command:
    """The command of a run that repeats a call of another history on this task queue."""
    attributes = ScheduleActivityTaskCommandAttributes(
        activity_id="again",
        activity_type=call.activity_type,
        task_queue=TaskQueue(name=queue),
        header=call.header,
        input=call.input,
    )
    attributes.start_to_close_timeout.FromSeconds(60)
    return Command(
        command_type=CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK,
        schedule_activity_task_command_attributes=attributes,
    )


async def answer_call(temporal: Temporal, queue: str, answer: Payloads) -> None:
    """Take the next call of this task queue, and complete it with this answer."""
    request = PollActivityTaskQueueRequest(
        namespace=temporal.namespace, task_queue=TaskQueue(name=queue), identity="stranger"
    )
    task = await temporal.workflow_service.poll_activity_task_queue(request)
    assert task.task_token, "Temporal has sent no call"
    await temporal.workflow_service.respond_activity_task_completed(
        RespondActivityTaskCompletedRequest(
            task_token=task.task_token, namespace=temporal.namespace, identity="stranger", result=answer
        )
    )


def complete() -> Command:
    """The command of a run that closes as Completed."""
    return Command(
        command_type=CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION,
        complete_workflow_execution_command_attributes=CompleteWorkflowExecutionCommandAttributes(),
    )


def continue_as(type: str, queue: str, input: Any) -> Command:
    """The command of a run that is continued as another one."""
    attributes = ContinueAsNewWorkflowExecutionCommandAttributes(
        workflow_type=WorkflowType(name=type),
        task_queue=TaskQueue(name=queue),
        input=Payloads(payloads=[json_payload(input)]),
    )
    return Command(
        command_type=CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION,
        continue_as_new_workflow_execution_command_attributes=attributes,
    )
