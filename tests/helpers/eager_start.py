"""A stranger who completes workflow tasks: Temporal hands the first one of a run to the client that starts it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.api.command.v1 import (
    Command,
    CompleteWorkflowExecutionCommandAttributes,
    ContinueAsNewWorkflowExecutionCommandAttributes,
    ModifyWorkflowPropertiesCommandAttributes,
)
from temporalio.api.common.v1 import Memo, Payload, Payloads, WorkflowType
from temporalio.api.enums.v1 import CommandType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    RespondWorkflowTaskCompletedRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import Client as Temporal


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
