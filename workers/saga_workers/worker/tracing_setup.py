"""Configures tracing from OpenTelemetry's OTEL_* variables. Without them no OpenTelemetry module is loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from saga_workers.worker.tracing import Tracing

log = logging.getLogger("saga.traces")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def tracing_from_environment(env: Mapping[str, str] = os.environ) -> Tracing | None:
    """The tracing that the variables configure; None if they configure none.

    An endpoint (``OTEL_EXPORTER_OTLP_ENDPOINT``), or ``OTEL_TRACES_EXPORTER`` set to ``otlp`` or ``console``, turns it
    on; ``none``, or ``OTEL_SDK_DISABLED=true``, off. Problems are only logged: a missing package must not keep sagas
    from running.
    """
    exporter = _configured_exporter(env)
    if exporter is None:
        return None
    try:
        processor = _span_processor(exporter, env)
        from opentelemetry.sdk.resources import Resource

        from saga_workers.worker.tracing import Tracing
    except ImportError as error:
        log.warning(
            "tracing is off: the package %s is not installed; pip install 'saga-orchestrator[otel]'",
            error.name,
        )
        return None
    if processor is None:
        log.warning("tracing is off: OTEL_TRACES_EXPORTER must be otlp, console or none, not %s", exporter)
        return None
    named = "OTEL_SERVICE_NAME" in env or "service.name=" in env.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Tracing([processor], resource=Resource.create({} if named else {"service.name": "saga-worker"}))


def tracing_interceptors(tracing: Tracing | None) -> Sequence[Any]:
    """The interceptors that a client and a worker need for tracing."""
    if tracing is None:
        return ()
    from saga_workers.worker.tracing import TracingInterceptor

    return (TracingInterceptor(tracing),)


def _configured_exporter(env: Mapping[str, str]) -> str | None:
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    default = "otlp" if any(env.get(name) for name in _ENDPOINTS) else "none"
    exporter = env.get("OTEL_TRACES_EXPORTER", "").strip().lower() or default
    return None if exporter == "none" else exporter


def _span_processor(exporter: str, env: Mapping[str, str]) -> SpanProcessor | None:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor

    if exporter == "console":
        return SimpleSpanProcessor(ConsoleSpanExporter())
    if exporter != "otlp":
        return None
    protocol = next((env[name] for name in _PROTOCOLS if env.get(name)), "http/protobuf")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # pyright: ignore[reportMissingImports]
            OTLPSpanExporter,
        )
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    return BatchSpanProcessor(OTLPSpanExporter())
