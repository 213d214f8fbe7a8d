"""Sends facts along with a workflow's start in headers, so that the input stays the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WorkflowHandle,
)
from temporalio.converter import PayloadConverter

_pending: ContextVar[Mapping[str, Any] | None] = ContextVar("saga_headers", default=None)


def to_header(value: Any) -> Payload:
    """A JSON value as a header."""
    return value if isinstance(value, Payload) else PayloadConverter.default.to_payload(value)


@contextmanager
def start_headers(headers: Mapping[str, Any]) -> Iterator[None]:
    """Every workflow started inside the block carries these headers: JSON values, or payloads made before."""
    token = _pending.set(headers)
    try:
        yield
    finally:
        _pending.reset(token)


class HeaderInterceptor(Interceptor):
    """Give this to ``Client.connect(interceptors=…)``; see :func:`start_headers`."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Outbound(next)


class _Outbound(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        headers = _pending.get()
        if headers:
            input.headers = {**input.headers, **{name: to_header(value) for name, value in headers.items()}}
        return await super().start_workflow(input)
