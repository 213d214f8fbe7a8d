"""OpenTelemetry spans: one for the saga, and under it one for each attempt of a step.

A saga outlives every process, so its span is made when it ends, by whichever worker sees that. Its ids are derived
from the run (or taken from the starter's trace), so attempts on any worker can name it as their parent long before.
The trace context travels in the header that Temporal's own OpenTelemetry interceptors use, in any language.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter

from saga_activities.watching import Watched

HEADER = "_tracer-data"

Carrier = dict[str, str]
_W3C = TraceContextTextMapPropagator()
_FLUSH_MILLISECONDS = 5000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a saga's span stands: its ids, and ``caller``, the trace context of whoever started the saga."""

    trace_id: int
    span_id: int
    sampled: bool
    caller: Carrier

    @property
    def carrier(self) -> Carrier:
        """The trace context that makes this span the parent."""
        return {**self.caller, "traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"}


class Tracing:
    """Makes spans. ``processors`` are OpenTelemetry span processors: they say where spans go."""

    def __init__(self, processors: Sequence[SpanProcessor], *, resource: Resource | None = None) -> None:
        self._provider = TracerProvider(id_generator=_Ids(), resource=resource)
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("saga-orchestrator")

    def place(self, saga: str, first_run_id: str, caller: Carrier) -> Place:
        """The span of a saga: the same whenever and wherever it is asked for."""
        span_id = _derived(f"span {first_run_id}", 8)
        above = get_current_span(_W3C.extract(caller, Context())).get_span_context()
        if above.is_valid:
            return Place(above.trace_id, span_id, above.trace_flags.sampled, caller)
        trace_id = _derived(f"trace {first_run_id}", 16)
        decision = self._provider.sampler.should_sample(None, trace_id, f"saga {saga}").decision
        return Place(trace_id, span_id, decision.is_sampled(), {})

    def saga_ended(
        self, place: Place, saga: str, attributes: Mapping[str, Any], *, began: float, ended: float, bad: bool
    ) -> None:
        """Make the span of a saga that is over. Times are seconds since the epoch."""
        with _forced((place.trace_id, place.span_id)):
            span = self._tracer.start_span(
                f"saga {saga}",
                context=_W3C.extract(place.caller, Context()),
                attributes=dict(attributes),
                start_time=int(began * 1e9),
            )
        if bad:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=int(ended * 1e9))

    @contextmanager
    def watch(self, watched: Watched) -> Iterator[None]:
        """A span for one attempt (:data:`saga_activities.watching.Watcher`); spans of the action are its children."""
        invocation = watched.invocation
        span = self._tracer.start_as_current_span(
            f"{invocation.op} {watched.step}",
            context=_W3C.extract(_above.get() or {}, Context()),
            attributes={
                "saga.id": invocation.saga_id,
                "saga.name": watched.saga,
                "saga.step.id": invocation.step,
                "saga.step.op": invocation.op,
                "saga.step.attempt": watched.number,
            },
            record_exception=False,
            set_status_on_exception=False,
        )
        with span as current:
            carrier: Carrier = {}
            _W3C.inject(carrier)
            watched.traceparent = carrier.get("traceparent")
            try:
                yield
            finally:
                outcome = watched.outcome
                none = "waits" if watched.waits else "not served"
                current.set_attribute("saga.outcome", outcome.kind if outcome is not None else none)
                # A business no is an answer like any other; the rest is trouble somebody may look for.
                if not watched.waits and (outcome is None or outcome.kind not in ("done", "rejected")):
                    message = outcome.failure.message if outcome is not None and outcome.failure is not None else ""
                    current.set_status(Status(StatusCode.ERROR, message))

    def flush(self) -> None:
        """Send what is still waiting, for at most five seconds."""
        self._provider.force_flush(_FLUSH_MILLISECONDS)


_above: ContextVar[Carrier | None] = ContextVar("saga_trace_above", default=None)


@contextmanager
def under(carrier: Carrier) -> Iterator[None]:
    """Attempts inside the block become children of the span in ``carrier``."""
    token = _above.set(carrier)
    try:
        yield
    finally:
        _above.reset(token)


def current_carrier() -> Carrier:
    """The trace context of the span this code runs in; empty when there is none."""
    carrier: Carrier = {}
    _W3C.inject(carrier)
    return carrier


def read_header(headers: Mapping[str, Payload]) -> Carrier:
    """The trace context in the headers of a start or an attempt; empty when there is none."""
    payload = headers.get(HEADER)
    value = PayloadConverter.default.from_payload(payload) if payload is not None else None
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}


def with_header(headers: Mapping[str, Payload], carrier: Carrier) -> Mapping[str, Payload]:
    """The headers with a trace context added."""
    return {**headers, HEADER: PayloadConverter.default.to_payload(carrier)} if carrier else headers


def _derived(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


_ids: ContextVar[tuple[int, int] | None] = ContextVar("saga_span_ids", default=None)


@contextmanager
def _forced(ids: tuple[int, int]) -> Iterator[None]:
    token = _ids.set(ids)
    try:
        yield
    finally:
        _ids.reset(token)


class _Ids(RandomIdGenerator):
    """Random ids, but for spans whose ids are settled already."""

    def generate_trace_id(self) -> int:
        given = _ids.get()
        return given[0] if given is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        given = _ids.get()
        return given[1] if given is not None else super().generate_span_id()
