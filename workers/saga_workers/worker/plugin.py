"""`SagaPlugin`: everything a Temporal worker or client needs to run sagas, in one plugin."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    HandleQueryInput,
    Worker,
    WorkerConfig,
    WorkflowInboundInterceptor,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from saga_activities.attempt_admission import AttemptAdmission
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.bulk_activities import BulkActivities
from saga_activities.circuit_breakers import CircuitBreakers
from saga_activities.connections import DatabaseConnections
from saga_activities.dispatcher import Dispatcher, PreparedAction
from saga_activities.http import CallbackAddresses, HttpConnections, http_settings
from saga_activities.locks.lock_activities import LockActivities
from saga_activities.messaging.kafka_request import KafkaRequestAction
from saga_activities.needed_connections import NeededConnections
from saga_activities.server_clock import ServerClock
from saga_activities.standing_pauses import StandingPauses
from saga_activities.temporal.definition_loader import DefinitionLoader
from saga_activities.temporal.saga_activities import SagaActivities, StartActivity
from saga_workers.bulk.detached_starts import SagaDetacher
from saga_workers.ledger.ledger_mark import LedgerMark
from saga_workers.ledger.recording import LedgerInterceptor
from saga_workers.ledger.run_ledger import NoLedger, RunLedger, open_ledger
from saga_workers.ledger.writer import LedgerWriter
from saga_workers.location.locator import Locator
from saga_workers.runtime.logs import leave_out_responses, log_attempt, shorten_missing_keys
from saga_workers.schedules.scheduled_starts import ScheduledStarts
from saga_workers.start.redelivered_starts import RedeliveredStarts
from saga_workers.start.saga_starter import SagaStarter
from saga_workers.temporal.data_converter import check_codec, for_workflow_tasks, project_client, with_codec
from saga_workers.temporal.machine_query import verifying_keys
from saga_workers.temporal.native_threads import await_native_threads_at_exit
from saga_workers.temporal.run_history import input_payload
from saga_workers.temporal.run_interceptor import RunInterceptor
from saga_workers.temporal.search_attributes import existing_attributes
from saga_workers.temporal.server_clock import measure_server_clock
from saga_workers.temporal.temporal_client import HeaderInterceptor, signal_granted_saga
from saga_workers.views.parked_holders import is_parked
from saga_workers.worker.before_reset import look_before_reset
from saga_workers.worker.cached_runs import CachedRuns, CachedRunsInterceptor
from saga_workers.worker.eager_calls import EagerCallsInterceptor
from saga_workers.worker.earlier_children import look_up_earlier_child
from saga_workers.worker.enclosing_sagas import EnclosingSagas
from saga_workers.worker.last_state import LastStates
from saga_workers.worker.metric_labels import MetricLabels
from saga_workers.worker.resets_first import with_resets_first
from saga_workers.worker.signed_activities import SignedActivitiesInterceptor
from saga_workers.worker.single_inputs import with_single_inputs
from saga_workers.worker.spark_support import make_spark_performer, spark_performers
from saga_workers.worker.tracing_setup import tracing_from_environment, tracing_interceptors
from saga_workers.worker.undecoded_messages import UndecodedMessagesInterceptor
from saga_workers.worker.worker_metrics import MetricsInterceptor, WorkerMetrics
from saga_workers.worker.worker_trust import TrustInterceptor, WorkerTrust
from sagas.definition.model import Definition
from sagas.project import Project
from sagas.protocol.redelivery_names import REDELIVER_ACTIVITY
from sagas.settings import load_settings
from sagas.workflow.batch_workflow import BatchWorkflow
from sagas.workflow.bulk_workflow import BulkWorkflow
from sagas.workflow.notify import NotifyWorkflow
from sagas.workflow.redelivery import RedeliveryWorkflow
from sagas.workflow.saga_workflow import SagaWorkflow
from sagas.workflow.schedule_workflow import ScheduledStart

if TYPE_CHECKING:
    from saga_workers.worker.tracing import Tracing


PACKAGES = ("sagas", "saga_activities", "saga_spark", "saga_workers")

HEARTBEAT_THROTTLE = timedelta(seconds=1)

LEDGER_GRACE = timedelta(seconds=5)
"""How long a stopping worker writes to its ledger at least, if its attempts have less time to end."""


class SagaPlugin(SimplePlugin):
    """Adds the sagas of a project to your own worker.

        client = await Client.connect(address, plugins=[SagaPlugin()])
        async with Worker(client, task_queue="sagas", workflows=[MyWorkflow], activities=[my_activity]):
            ...

    It brings the workflow of all sagas, one dynamic activity for their actions, and the client's part of a start. A
    worker can have one dynamic workflow and one dynamic activity, so one with its own cannot take this plugin too.

    Args:
        project: the project; default: the one found from the current folder upwards.
        metrics: the collector to count in; default: a new one, in the attribute ``metrics``.
        tracing: creates the spans; default: as the OTEL_* variables configure it, if they are set.
    """

    def __init__(
        self, project: Project | None = None, *, metrics: WorkerMetrics | None = None, tracing: Tracing | None = None
    ) -> None:
        await_native_threads_at_exit()
        self._project = project or Project(load_settings())
        self._trust = WorkerTrust(self._project)
        self._cached_runs = CachedRuns(self._project.settings.worker.max_cached_bytes)
        self._resources: tuple[DatabaseConnections, HttpConnections, PreparedAction | None] | None = None
        self.metrics = metrics or WorkerMetrics()
        self.metrics.labels = MetricLabels(lambda: self._trust.definitions)
        has_ledger = self._project.settings.ledger.connection is not None
        self._ledger_writer = LedgerWriter(self.metrics.ledger) if has_ledger else None
        self._ledger: RunLedger = NoLedger()
        self._ledger_mark = LedgerMark()
        self.pauses: StandingPauses | None = None
        self.breakers: CircuitBreakers | None = None
        self._grace = timedelta()
        self._tracing = tracing or tracing_from_environment()
        super().__init__(
            "saga-orchestrator",
            data_converter=self._with_codec,
            workflows=[SagaWorkflow, BulkWorkflow, BatchWorkflow, NotifyWorkflow, ScheduledStart, RedeliveryWorkflow],
            workflow_runner=_pass_through_engine,
            interceptors=[
                HeaderInterceptor(),
                UndecodedMessagesInterceptor(),
                CachedRunsInterceptor(self._cached_runs),
                TrustInterceptor(self._trust),
                SignedActivitiesInterceptor(self._trust.keys, accepts_any=self._trust.accepts_any),
                EagerCallsInterceptor(),
                CurrentDetailsInterceptor(),
                MetricsInterceptor(self.metrics),
                *([LedgerInterceptor(self._ledger_writer)] if self._ledger_writer else ()),
                *tracing_interceptors(self._tracing),
            ],
        )

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """The definitions that this worker has read last."""
        return self._trust.definitions

    def _with_codec(self, converter: DataConverter | None) -> DataConverter:
        return with_codec(converter or DataConverter.default, self._project.settings)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Called by Temporal when a worker is created."""
        leave_out_responses()
        shorten_missing_keys()
        self.metrics.initialize(self._trust.definitions.values())
        config = super().configure_worker(config)
        settings = self._project.settings
        databases = DatabaseConnections(settings.sql_connections())
        http = HttpConnections({service.name: http_settings(service) for service in settings.http_services()})
        spark = make_spark_performer(self._project, databases)
        self._resources = (databases, http, spark)
        self._ledger = open_ledger(self._project.settings)
        self._grace = max(config.get("graceful_shutdown_timeout") or timedelta(), LEDGER_GRACE)
        given = config.get("client")
        assert given is not None
        check_codec(given, settings)
        client = project_client(given, settings)
        kafka = self._project.settings.kafka
        bodies = ActionBodies(self._project.actions, max_event_bytes=kafka.max_message_bytes)
        requests = KafkaRequestAction(databases, kafka)
        enclosing = EnclosingSagas(client)
        needed = NeededConnections(bodies.connection, kafka.outbox)
        self.pauses = StandingPauses(self._ledger.pauses, needed, enclosing.names)
        self.breakers = CircuitBreakers(settings.connections, needed, lambda: self._ledger.engine)
        images = partial(_image_connections, self._project)
        callbacks = CallbackAddresses(settings.serve.public_url, self._trust.keys)
        dispatcher = Dispatcher(bodies, databases, http, spark_performers(spark), requests, images, callbacks)
        watchers = [
            log_attempt,
            self.metrics.observe_attempt,
            *([self._tracing.trace_attempt] if self._tracing else ()),
        ]
        parked = partial(is_parked, Locator(client, NoLedger()))
        locks = LockActivities(databases, partial(signal_granted_saga, client), self.metrics.lock_waited, parked)
        task_queue = config.get("task_queue") or self._project.settings.temporal.task_queue
        detach = SagaDetacher(client, task_queue, self._trust.keys)
        chunk_watchers = [self.metrics.observe_chunk, *([self._tracing.trace_chunk] if self._tracing else ())]
        ledger = self._project.settings.ledger.connection
        admission = AttemptAdmission(self.pauses, self.breakers)
        mark = self._ledger_mark
        bulk = BulkActivities(bodies, databases, ledger, detach, admission, chunk_watchers, lambda: mark.id)
        locator = Locator(client, self._ledger, keys=verifying_keys(settings))
        activities = SagaActivities(
            dispatcher,
            admission,
            _definition_loader(locator, self._project, self._trust),
            self._trust.verify_start,
            partial(look_before_reset, settings, locator),
            partial(look_up_earlier_child, settings, locator),
            watchers,
            locks,
            bulk,
            parked,
            ServerClock(partial(measure_server_clock, client)),
            self._start_activity(client, task_queue),
            lambda: mark.id,
        )
        config["activities"] = [*config.get("activities", ()), activities.perform]
        # Heartbeats of guarded attempts must not be throttled for longer than they may be late.
        config["max_heartbeat_throttle_interval"] = min(
            config.get("max_heartbeat_throttle_interval", HEARTBEAT_THROTTLE), HEARTBEAT_THROTTLE
        )
        return config

    def _start_activity(self, client: Client, task_queue: str) -> StartActivity:
        settings = self._project.settings
        locator = Locator(client, self._ledger, settings)

        async def make_starter(definition: Definition) -> SagaStarter:
            return SagaStarter(
                locator,
                definition,
                task_queue=task_queue,
                keys=self._trust.keys,
                variables=settings.vars,
                attributes=tuple(await existing_attributes(client)),
            )

        scheduled = ScheduledStarts(locator, self._trust.definition, make_starter, settings.vars, task_queue)
        again = RedeliveredStarts(locator, self._trust.definition, make_starter)

        async def perform(activity_type: str, request: Mapping[str, Any]) -> dict[str, Any]:
            return await (again(request) if activity_type == REDELIVER_ACTIVITY else scheduled(activity_type, request))

        return perform

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """Called by Temporal around the worker's life; closes the connections with it."""
        if self._ledger_writer is not None:
            self._ledger_writer.start(self._ledger.engine)
            await self._ledger_mark.start(self._ledger)
        # The SDK has no public way to give workflow tasks and activities different converters.
        tasks = worker._workflow_worker  # pyright: ignore[reportPrivateUsage]
        if tasks is not None:
            tasks._data_converter = for_workflow_tasks(tasks._data_converter)  # pyright: ignore[reportPrivateUsage]
        # The SDK has no public way to drop a single run from its cache.
        self._cached_runs.evict = worker._bridge_worker.request_workflow_eviction  # pyright: ignore[reportPrivateUsage]
        try:
            await super().run_worker(worker, next)
        finally:
            if self._ledger_writer is not None:
                await self._ledger_mark.stop()
                await self._ledger_writer.stop(self._grace)
                await self._ledger.close()
            if self._resources is not None:
                databases, http, spark = self._resources
                if spark is not None:
                    await spark.close()
                await databases.close()
                await http.aclose()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.flush)


def _pass_through_engine(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Pass the engine's modules through Temporal's sandbox; the rest of the user's own runner stays as it is, but for
    the inputs of the engine's workflows.

    This covers all packages of the engine, not only the one that workflows run: a file with a workflow is imported
    again inside the sandbox, and `from sagas import SagaPlugin` in it also imports database drivers and HTTP clients.
    """
    if isinstance(runner, SandboxedWorkflowRunner):
        native = ("re2", "referencing", "rpds", "attr", "attrs")
        restrictions = runner.restrictions.with_passthrough_modules(*PACKAGES, *native)
        runner = dataclasses.replace(runner, restrictions=restrictions)
    assert runner is not None
    return with_resets_first(with_single_inputs(runner))


def _image_connections(project: Project) -> set[str]:
    steps = (step for definition in project.definitions.values() for step in definition.steps)
    return {step.do.connection for step in steps if step.do.images and step.do.connection is not None}


def _definition_loader(locator: Locator, project: Project, trust: WorkerTrust) -> DefinitionLoader:
    names: list[str] = []

    async def list_attributes() -> list[str]:
        if not names:
            names.extend(await existing_attributes(locator.temporal))
        return names

    last_states = LastStates(locator, None if trust.accepts_any else trust.keys)
    return DefinitionLoader(
        project, trust.definition, last_states, partial(input_payload, locator.temporal), list_attributes
    )


# The current details of a run are computed when the Web UI queries them. Sending them to Temporal after each event
# would take a tenth of the worker's time, for texts that are rarely read.
_METADATA_QUERY = "__temporal_workflow_metadata"
"""The query that the Web UI sends; part of the contract between Temporal's server and SDKs."""


class CurrentDetailsInterceptor(RunInterceptor):
    """Worker interceptor that answers the Web UI's query for the current details."""

    def __init__(self) -> None:
        super().__init__(_CurrentDetailsInbound)


class _CurrentDetailsInbound(WorkflowInboundInterceptor):
    async def handle_query(self, input: HandleQueryInput) -> Any:
        answer = await super().handle_query(input)
        if input.query == _METADATA_QUERY:
            instance = workflow.instance()
            if isinstance(instance, SagaWorkflow | BulkWorkflow | BatchWorkflow):
                answer.current_details = instance.details()
        return answer
