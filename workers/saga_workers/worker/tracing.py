"""OpenTelemetry spans: one per saga, with one child per attempt of a step. The attempts of a call that waits for a
reply, or a callback, are children of a span that lasts as long as the wait.

A saga outlives every process, so the worker that sees its end creates its span. The ids are derived from the run (or
taken from the starter's trace), so attempts on any worker can name it as their parent long before.

The trace context travels in the header of Temporal's own OpenTelemetry interceptors, in every language.
``temporalio.contrib.opentelemetry`` carries it from the caller into the start, and from an attempt's header into the
context of the action. It cannot carry the spans: those of a workflow have no duration, and random ids, which neither a
worker that takes the run over nor the next run of the saga knows; and each attempt would be the child of its own span
for the scheduling. So its own spans are switched off, and the part within workflows is here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NoOpTracer, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio import worker, workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib import opentelemetry as contrib
from temporalio.converter import PayloadConverter
from temporalio.exceptions import FailureError

from saga_activities.attempt_context import ObservedAttempt, ObservedChunk
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.settings.masking import mask
from sagas.workflow.awaited_replies import AwaitedReply
from sagas.workflow.json_payloads import UnreadableValue, read_payload
from sagas.workflow.run_trust import KeyMissing
from sagas.workflow.saga_workflow import SagaWorkflow

HEADER = "_tracer-data"

Carrier = dict[str, str]
_W3C = TraceContextTextMapPropagator()
_FLUSH_TIMEOUT_MS = 5000


@dataclass(frozen=True, slots=True)
class SagaSpanContext:
    """The ids of the span of a saga, or of one of its calls, and ``caller``, the trace context of its starter."""

    trace_id: int
    span_id: int
    sampled: bool
    caller: Carrier

    @property
    def carrier(self) -> Carrier:
        """The trace context that makes this span the parent."""
        return {**self.caller, "traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"}


class Tracing:
    """Creates spans. ``processors``: OpenTelemetry span processors, which export them."""

    def __init__(self, processors: Sequence[SpanProcessor], *, resource: Resource | None = None) -> None:
        self._provider = TracerProvider(id_generator=_IdGenerator(), resource=resource)
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("saga-orchestrator")

    def saga_span_context(self, saga: str, first_run_id: str, caller: Carrier) -> SagaSpanContext:
        """The span context of a saga; every worker computes the same."""
        span_id = _derived_id(f"span {first_run_id}", 8)
        above = get_current_span(_W3C.extract(caller, Context())).get_span_context()
        if above.is_valid:
            return SagaSpanContext(above.trace_id, span_id, above.trace_flags.sampled, caller)
        trace_id = _derived_id(f"trace {first_run_id}", 16)
        decision = self._provider.sampler.should_sample(None, trace_id, f"saga {saga}").decision
        return SagaSpanContext(trace_id, span_id, decision.is_sampled(), {})

    def record_ended(
        self,
        span_context: SagaSpanContext,
        name: str,
        attributes: Mapping[str, Any],
        *,
        started_at: float,
        ended_at: float,
        error: str | None,
    ) -> None:
        """Create the span of a saga, or of a call, that has ended. Times are seconds since the epoch. ``error``: the
        message of a failure, or None.
        """
        with _force_ids((span_context.trace_id, span_context.span_id)):
            span = self._tracer.start_span(
                name,
                context=_W3C.extract(span_context.caller, Context()),
                attributes=dict(attributes),
                start_time=int(started_at * 1e9),
            )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, mask(error)))
        span.end(end_time=int(ended_at * 1e9))

    @contextmanager
    def trace_attempt(self, observed: ObservedAttempt) -> Iterator[None]:
        """A span for one attempt (see :data:`AttemptObserver`); spans of the action are its children."""
        invocation = observed.invocation
        span = self._tracer.start_as_current_span(
            f"{invocation.op} {observed.step}",
            attributes={
                "saga.id": invocation.saga_id,
                "saga.name": observed.saga,
                "saga.step.id": invocation.entry,
                "saga.step.op": invocation.op,
                "saga.step.attempt": observed.number,
            },
            record_exception=False,
            set_status_on_exception=False,
        )
        with span as current:
            carrier: Carrier = {}
            _W3C.inject(carrier)
            observed.traceparent = carrier.get("traceparent")
            try:
                yield
            finally:
                outcome = observed.outcome
                none = "waits" if observed.awaits_reply else "not served"
                current.set_attribute("saga.outcome", outcome.kind if outcome is not None else none)
                # A rejection is a normal outcome, not an error.
                if not observed.awaits_reply and (outcome is None or outcome.kind not in ("done", "rejected")):
                    message = outcome.failure.message if outcome is not None and outcome.failure is not None else ""
                    current.set_status(Status(StatusCode.ERROR, mask(message)))

    @contextmanager
    def trace_chunk(self, observed: ObservedChunk) -> Iterator[None]:
        """A span for one attempt of a chunk; spans of its actions are its children."""
        span = self._tracer.start_as_current_span(
            f"{observed.op} {observed.step} × {len(observed.calls)}",
            attributes={
                "saga.name": observed.saga,
                "saga.step.id": observed.step,
                "saga.step.op": observed.op,
                "saga.step.attempt": observed.number,
                "saga.chunk.calls": len(observed.calls),
            },
            record_exception=False,
            set_status_on_exception=False,
        )
        with span as current:
            try:
                yield
            finally:
                kinds = Counter("waits" if outcome is None else outcome.kind for outcome in observed.outcomes or ())
                for kind, count in kinds.items():
                    current.set_attribute(f"saga.chunk.{kind}", count)
                if observed.outcomes is None or kinds.keys() - {"done", "rejected", "waits"}:
                    current.set_status(Status(StatusCode.ERROR))

    def flush(self) -> None:
        """Export pending spans, for at most five seconds."""
        self._provider.force_flush(_FLUSH_TIMEOUT_MS)


def _read_header(headers: Mapping[str, Payload]) -> Carrier:
    """The trace context in the headers of a start; empty if there is none."""
    payload = headers.get(HEADER)
    value = None
    if payload is not None:
        with suppress(UnreadableValue, KeyMissing):  # any client may send one
            value = read_payload(payload)
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def _with_header(headers: Mapping[str, Payload], carrier: Carrier) -> Mapping[str, Payload]:
    """The headers with a trace context added."""
    return {**headers, HEADER: PayloadConverter.default.to_payload(carrier)} if carrier else headers


def _derived_id(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


_forced_ids: ContextVar[tuple[int, int] | None] = ContextVar("saga_span_ids", default=None)


@contextmanager
def _force_ids(ids: tuple[int, int]) -> Iterator[None]:
    token = _forced_ids.set(ids)
    try:
        yield
    finally:
        _forced_ids.reset(token)


class _IdGenerator(RandomIdGenerator):
    """Random ids, except for spans with predetermined ids."""

    def generate_trace_id(self) -> int:
        given = _forced_ids.get()
        return given[0] if given is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        given = _forced_ids.get()
        return given[1] if given is not None else super().generate_span_id()


# Propagation of the trace context through Temporal: starter → saga → attempts and nested sagas → the saga's next run.
_TRACING_KEY = "saga_tracing"


class TracingInterceptor(contrib.TracingInterceptor):
    """Interceptor for a client (it sends the caller's trace context) and for a worker."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__(NoOpTracer())
        self.header_key = HEADER
        self.text_map_propagator = _W3C
        self._tracing = tracing

    def workflow_interceptor_class(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[worker.WorkflowInboundInterceptor]:
        input.unsafe_extern_functions.update({_TRACING_KEY: lambda: self._tracing})  # pyright: ignore[reportCallIssue]
        return _WorkflowInbound


class _WorkflowInbound(worker.WorkflowInboundInterceptor):
    """One per run; passes its span context on to everything the run starts."""

    span_context: SagaSpanContext | None = None

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_WorkflowOutbound(outbound, self))

    async def execute_workflow(self, input: worker.ExecuteWorkflowInput) -> Any:
        saga = workflow.instance()
        if not isinstance(saga, SagaWorkflow):
            return await super().execute_workflow(input)
        get_tracing: Callable[[], Tracing] = workflow.extern_functions()[_TRACING_KEY]
        info = workflow.info()
        # The first run's id identifies the whole chain of runs.
        self.span_context = get_tracing().saga_span_context(
            info.workflow_type, info.first_execution_run_id, _read_header(input.headers)
        )
        saga.observe_replies(_ReplyTracing(get_tracing(), self.span_context))
        try:
            result = await super().execute_workflow(input)
        except FailureError:
            # No other exception ends a saga: it continues as new, or the worker evicts it from its cache.
            _record_end(get_tracing(), self.span_context, saga)
            raise
        _record_end(get_tracing(), self.span_context, saga)
        return result


def _record_end(tracing: Tracing, span_context: SagaSpanContext, saga: SagaWorkflow) -> None:
    if workflow.unsafe.is_replaying():
        return
    info, finish = workflow.info(), saga.ended
    undo = info.workflow_id.endswith(UNDO_SUFFIX)
    began = info.start_time.timestamp() if undo or saga.started_at is None else saga.started_at
    attributes = {
        "saga.id": info.workflow_id.removesuffix(UNDO_SUFFIX),
        "saga.name": info.workflow_type,
        "saga.outcome": finish.state if finish is not None else "REFUSED",
    }
    if finish is not None and finish.reason is not None:
        attributes["saga.reason"] = finish.reason.get("kind") or ""
    bad = finish is None or finish.state == "RESIDUE"
    tracing.record_ended(
        span_context,
        f"saga {info.workflow_type}",
        attributes,
        started_at=began,
        ended_at=workflow.time(),
        error="" if bad else None,
    )


_reply_span: ContextVar[SagaSpanContext | None] = ContextVar("saga_reply_span", default=None)
"""The span of the call that the current task waits for; the attempts that it starts are its children."""


class _ReplyTracing:
    """Records a span for each call of a run that waits for a reply or a callback, when it has ended."""

    def __init__(self, tracing: Tracing, saga_span: SagaSpanContext) -> None:
        self._tracing, self._saga_span = tracing, saga_span

    @contextmanager
    def __call__(self, awaited: AwaitedReply) -> Iterator[None]:
        call, above, info = awaited.call, self._saga_span, workflow.info()
        # The same in each run of the chain, of which the last one records the span.
        name = f"reply {info.first_execution_run_id} {call.op} {call.key} {call.earlier_attempts}"
        span_context = SagaSpanContext(above.trace_id, _derived_id(name, 8), above.sampled, above.carrier)
        _reply_span.set(span_context)
        yield
        _reply_span.set(None)  # what follows from the outcome starts in this task
        outcome = awaited.outcome
        if outcome is None or workflow.unsafe.is_replaying():
            return
        attributes = {
            "saga.id": info.workflow_id.removesuffix(UNDO_SUFFIX),
            "saga.name": info.workflow_type,
            "saga.step.id": call.entry,
            "saga.step.op": call.op,
            "saga.outcome": outcome.kind,
        }
        failure = outcome.failure.message if outcome.failure is not None else ""
        self._tracing.record_ended(
            span_context,
            f"await {call.op} {call.step}",
            attributes,
            started_at=awaited.began_at,
            ended_at=workflow.time(),
            error=None if outcome.kind in ("done", "rejected") else failure,
        )


class _WorkflowOutbound(worker.WorkflowOutboundInterceptor):
    def __init__(self, next: worker.WorkflowOutboundInterceptor, root: _WorkflowInbound) -> None:
        super().__init__(next)
        self._root = root

    def _carrier(self) -> Carrier:
        span_context = _reply_span.get() or self._root.span_context
        return span_context.carrier if span_context is not None else {}

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = _with_header(input.headers, self._carrier())
        return super().start_activity(input)

    def start_local_activity(self, input: worker.StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = _with_header(input.headers, self._carrier())
        return super().start_local_activity(input)

    async def start_child_workflow(
        self, input: worker.StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        input.headers = _with_header(input.headers, self._carrier())
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: worker.ContinueAsNewInput) -> NoReturn:
        if self._root.span_context is not None:
            # The next run has the same parent.
            input.headers = _with_header(input.headers, self._root.span_context.caller)
        super().continue_as_new(input)
