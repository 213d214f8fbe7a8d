"""Replays the histories of runs on this build, and asks each saga at the end which calls it may still make.

The replay needs no worker and changes nothing: the calls of activities are compared with the history, and not made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowHistory
from temporalio.worker import (
    ExecuteWorkflowInput,
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInstance,
    WorkflowInstanceDetails,
)

from saga_workers.temporal.data_converter import for_workflow_tasks
from saga_workers.temporal.run_history import readable_events
from saga_workers.temporal.run_interceptor import RunInterceptor
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.worker.resets_first import with_resets_first
from saga_workers.worker.signed_activities import SignedActivitiesInterceptor
from saga_workers.worker.single_inputs import with_single_inputs
from saga_workers.worker.undecoded_messages import UndecodedMessagesInterceptor
from saga_workers.worker.worker_trust import TrustInterceptor, WorkerTrust
from sagas.machine.remaining_calls import RemainingCall, calls_of_definition
from sagas.project import Project
from sagas.protocol.payloads import (
    DEFINITION_HEADER,
    DETACHED_HEADER,
    ENGINE_WORKFLOWS,
    LOAD_ACTIVITY,
    OWNER_HEADER,
    SIGNATURE_HEADER,
    STARTED_AT_MEMO,
    UNDO_SUFFIX,
    VERIFY_ACTIVITY,
)
from sagas.text.exact_json import decode_json
from sagas.workflow.batch_workflow import BatchWorkflow
from sagas.workflow.bulk_workflow import BulkWorkflow
from sagas.workflow.client_fields import MALFORMED
from sagas.workflow.notify import NotifyWorkflow
from sagas.workflow.redelivery import RedeliveryWorkflow
from sagas.workflow.run_start import read_header
from sagas.workflow.run_trust import RunTrust
from sagas.workflow.saga_workflow import SagaWorkflow
from sagas.workflow.schedule_workflow import ScheduledStart

_WORKFLOWS = (SagaWorkflow, BulkWorkflow, BatchWorkflow, NotifyWorkflow, ScheduledStart, RedeliveryWorkflow)
_HEADERS_OF_SAGAS = (DEFINITION_HEADER, DETACHED_HEADER, OWNER_HEADER)
_START_CHECKS = (LOAD_ACTIVITY, VERIFY_ACTIVITY)
"""The activities that a saga begins with whose start has no definition, such as a nested one."""


@dataclass(frozen=True, slots=True)
class ReplayedSaga:
    """A saga, or a notification, with the calls that it may still make."""

    saga: str
    id: str
    calls: Sequence[RemainingCall]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run after its replay. ``failure`` is the reason why it cannot be replayed; ``sagas``: its own one, or those of
    a bulk workflow. ``is_proven``: the keys of this build verify what its history has signed, so that a worker with
    them may sign calls for it."""

    run: RunInfo
    failure: Exception | None
    sagas: Sequence[ReplayedSaga]
    is_proven: bool = True


async def replay_runs(temporal: Temporal, project: Project, runs: AsyncIterator[RunInfo]) -> AsyncIterator[Replayed]:
    """Replay the runs one after the other; last come those that no worker has begun, which have nothing to replay.

    Left out are those of other workflows, and those without a history.
    """
    replayed_runs: dict[str, RunInfo] = {}
    trust = WorkerTrust(project)
    not_begun: list[Replayed] = []

    async def histories() -> AsyncIterator[WorkflowHistory]:
        async for run in runs:
            events = [event async for event in readable_events(temporal, run)]
            if not events or not _is_of_the_engine(run, events, project):
                continue
            if any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in events):
                history = WorkflowHistory(run.id, events)
                replayed_runs[history.run_id] = run  # of a run after a reset that is the id of the run before it
                yield history
            elif run.running:
                not_begun.append(_not_begun(run, events[0], trust))

    instances: dict[str, Any] = {}
    sagas: dict[str, Sequence[ReplayedSaga]] = {}
    unproven: set[str] = set()

    def ask(run_id: str) -> None:
        if run_id in instances and run_id in replayed_runs:
            sagas[run_id] = _sagas_of(instances[run_id], replayed_runs[run_id])
            of_run: RunTrust | None = getattr(instances[run_id], "trust", None)
            if of_run is not None and not of_run.is_proven:
                unproven.add(run_id)

    replayer = Replayer(
        workflows=_WORKFLOWS,
        workflow_runner=with_resets_first(with_single_inputs(_AskingRunner(ask))),
        interceptors=[
            TrustInterceptor(trust),
            UndecodedMessagesInterceptor(),
            SignedActivitiesInterceptor(trust.keys, accepts_any=trust.accepts_any),  # counts the calls of a run
            RunInterceptor(lambda next: _Remembering(next, instances)),
        ],
        namespace=temporal.namespace,
        data_converter=for_workflow_tasks(temporal.data_converter),
        debug_mode=True,  # without the limit of time for a task, which a busy machine exceeds
    )
    async with replayer.workflow_replay_iterator(histories()) as results:
        async for result in results:
            id = result.history.run_id
            run, is_proven = replayed_runs.pop(id), id not in unproven
            instances.pop(id, None)
            unproven.discard(id)
            yield Replayed(run, result.replay_failure, sagas.pop(id, ()), is_proven)
    for replayed in not_begun:
        yield replayed


def _not_begun(run: RunInfo, first: HistoryEvent, trust: WorkerTrust) -> Replayed:
    """The run with the calls of the definition that its start has; without one it begins with that of this build."""
    fields = first.workflow_execution_started_event_attributes.header.fields
    if DEFINITION_HEADER not in fields:
        return Replayed(run, None, ())
    try:
        definition = read_header(fields[DEFINITION_HEADER].data).definition
        signature = decode_json(fields[SIGNATURE_HEADER].data) if SIGNATURE_HEADER in fields else None
    except MALFORMED as error:
        return Replayed(run, error, ())
    is_proven = trust.missing_key(signature) is None
    return Replayed(run, None, [ReplayedSaga(definition.saga, run.id, calls_of_definition(definition))], is_proven)


def _sagas_of(instance: Any, run: RunInfo) -> Sequence[ReplayedSaga]:
    interrupted = run.ended_from_outside
    match instance:
        case BulkWorkflow():
            calls_by_id = instance.remaining_calls(interrupted=interrupted)
            return [ReplayedSaga(instance.saga, id, calls) for id, calls in calls_by_id.items()]
        case SagaWorkflow():
            calls = instance.remaining_calls(interrupted=interrupted)
            return [ReplayedSaga(run.workflow_type, run.id.removesuffix(UNDO_SUFFIX), calls)]
        case NotifyWorkflow():
            return [ReplayedSaga(run.workflow_type, run.id, instance.remaining_calls())]
    return ()


class _AskingRunner(UnsandboxedWorkflowRunner):
    """Calls ``ask`` with the id of a run at the end of its history, before it is evicted: the eviction cancels its
    tasks, which the code of the saga takes for a cancel of the saga.
    """

    def __init__(self, ask: Callable[[str], None]) -> None:
        super().__init__()
        self._asks = ask

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = super().create_instance(det)
        activate = instance.activate

        def ask_and_activate(act: WorkflowActivation) -> WorkflowActivationCompletion:
            if any(job.HasField("remove_from_cache") for job in act.jobs):
                self._asks(act.run_id)
            return activate(act)

        instance.activate = ask_and_activate
        return instance


class _Remembering(WorkflowInboundInterceptor):
    def __init__(self, next: WorkflowInboundInterceptor, instances: dict[str, Any]) -> None:
        super().__init__(next)
        self._instances = instances

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        self._instances[workflow.info().run_id] = workflow.instance()
        return await super().execute_workflow(input)


def _is_of_the_engine(run: RunInfo, events: Sequence[HistoryEvent], project: Project) -> bool:
    """False for a workflow of somebody else, whose worker shares the task queue. A saga is told by its history: this
    build need not have its definition any more.
    """
    start = events[0].workflow_execution_started_event_attributes
    return (
        run.workflow_type in ENGINE_WORKFLOWS
        or run.workflow_type in project.definitions
        or any(name in start.header.fields for name in _HEADERS_OF_SAGAS)
        or STARTED_AT_MEMO in start.memo.fields  # it goes on with what an earlier run has begun
        or any(event.activity_task_scheduled_event_attributes.activity_type.name in _START_CHECKS for event in events)
    )
