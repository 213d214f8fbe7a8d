"""Worker interceptor for messages that are encrypted with a key which the worker lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    WorkflowInboundInterceptor,
)

from saga_workers.temporal.run_interceptor import RunInterceptor
from sagas.workflow.failures import refused_error
from sagas.workflow.json_payloads import NO_INPUT, missing_value_key, require_value_key
from sagas.workflow.saga_messages import SagaMessages
from sagas.workflow.undecoded import READS_QUERY, is_undecoded


class UndecodedMessagesInterceptor(RunInterceptor):
    """Ignores the signals of a run that this worker cannot decrypt, with one warning, and refuses such updates.

    A client asks beforehand, by a query, whether the worker has the key of its signal.
    """

    def __init__(self) -> None:
        super().__init__(_UndecodedInbound)


class _UndecodedInbound(WorkflowInboundInterceptor):
    def __init__(self, next: WorkflowInboundInterceptor) -> None:
        super().__init__(next)
        self._signals = 0
        self._warned = False

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """Called by Temporal once per run."""
        workflow.set_query_handler(READS_QUERY, _reads)
        return await super().execute_workflow(input)

    async def handle_signal(self, input: HandleSignalInput) -> None:
        """Called by Temporal for each signal."""
        payloads = list(_payloads(input.args))
        if payloads:
            self._signals += 1
            # One marker for the signal: a worker with another set of keys may read other ones of its payloads.
            missing = next((each for each in payloads if missing_value_key(each) is not None), payloads[0])
            if is_undecoded(missing, f"signal {self._signals}", waits=False):
                if not self._warned:
                    workflow.logger.warning("signals are ignored that are encrypted with a key this worker lacks")
                self._warned = True
                if isinstance(run := workflow.instance(), SagaMessages):
                    run.count_message()
                return
        await super().handle_signal(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        """Called by Temporal for each update, but not in a replay."""
        for payload in _payloads(input.args):
            if (key := missing_value_key(payload)) is not None:
                raise refused_error(f"the request is encrypted with the key {key[:80]}, which the worker does not have")
        super().handle_update_validator(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        """Called by Temporal for each update that is accepted."""
        for payload in _payloads(input.args):
            require_value_key(payload)
        return await super().handle_update_handler(input)


def _payloads(args: Iterable[Any]) -> Iterator[Payload]:
    for argument in args:
        if isinstance(argument, RawValue):
            yield argument.payload
        elif isinstance(argument, list):
            yield from _payloads(argument)


def _reads(sent: RawValue = NO_INPUT) -> str | None:
    return missing_value_key(sent.payload)
