"""Delivers a signal to a saga that waits: of an event, or of a row that an application has enqueued."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from saga_workers.bulk.detach_request import leave_bulk_workflow
from saga_workers.interventions import signal_message
from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.signals.signal_limit import SignalLimit, SignalRefused
from saga_workers.temporal.message_keys import KeyNotShared, MessageKeys
from saga_workers.temporal.temporal_runs import NoAnswer, RunInfo
from saga_workers.views.saga_view import read_view
from sagas.definition.saga_ids import workflow_id_problem
from sagas.errors import SagaError, UsageError
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.text.exact_json import encode_json


class SagaNotFound(SagaError):
    """The saga that a signal is addressed to does not exist, perhaps not yet."""


@dataclass(frozen=True, slots=True)
class Signal:
    """``by`` names the signal: a saga that has ended with one of this name has received it. ``reject``: the reason why
    it rejects the `wait` instead.
    """

    saga_id: str
    name: str
    data: Any
    by: str
    reject: str | None = None


class SignalDelivery:
    """``most``: signals for one run."""

    def __init__(self, locator: Locator, most: int) -> None:
        self._locator = locator
        self._limit = SignalLimit(most)
        self._keys = MessageKeys()

    async def deliver(
        self,
        signal: Signal,
        saga: str | None,
        check: Callable[[RunInfo], Awaitable[None]] | None = None,
        check_saga: Callable[[Location], Awaitable[None]] | None = None,
    ) -> bool:
        """Send a signal; False if the saga had received it, and has ended. ``saga``: the name it must have. ``check``
        may refuse the run that is about to get it, and ``check_saga`` the saga before anything is done.

        Raises SignalRefused if no saga will ever take it, SagaNotFound, and LedgerUnavailable or RPCError, and
        NoAnswer, also if the worker of the saga lacks the key with which the signal is encrypted: it may get it.
        """
        saga_id, locator = signal.saga_id, self._locator
        if (problem := workflow_id_problem(saga_id)) is not None:
            raise SignalRefused(problem)
        if saga_id.endswith(UNDO_SUFFIX):
            raise SignalRefused(f"{saga_id} is the undo of a saga, which takes no signals; send the id of the saga")
        try:
            sent = signal_message(signal.name, signal.data, by=signal.by, reject=signal.reject)
        except UsageError as error:
            raise SignalRefused(error.message) from None
        location = await locator.locate(saga_id)
        if check_saga is not None and location.kind != "unknown":
            await check_saga(location)
        if location.member is not None and location.open_run is None:
            location = await leave_bulk_workflow(locator, location.member)
        if location.kind == "unknown":
            raise SagaNotFound(f"there is no saga {saga_id}")
        if saga is not None and location.run is not None and location.run.run.workflow_type != saga:
            raise SignalRefused(f"{saga_id} is a saga {location.run.run.workflow_type}, not {saga}")
        if location.kind == "running":
            if check is not None and location.run is not None:
                await check(location.run.run)
            if location.run is not None:
                try:
                    await self._keys.require(locator.temporal, location.run.run)
                except KeyNotShared as error:
                    raise NoAnswer(error.message) from error
            try:
                with nullcontext() if location.run is None else self._limit.admit(location.run, len(encode_json(sent))):
                    await locator.temporal.get_workflow_handle(saga_id).signal(signal.name, sent)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            else:
                return True
        view = await read_view(locator, saga_id)
        if view.is_unverified or not _already_received(view, signal):
            raise SignalRefused(_why_not_signalled(location, view))
        return False


def _why_not_signalled(location: Location, view: SagaView) -> str:
    if location.kind == "undoing":
        return f"{location.saga_id} is being undone, and takes no signals any more"
    if view.state in FINAL_STATES:
        return f"{location.saga_id} has already ended {view.state}"
    if view.source == "ledger":
        return f"Temporal has no run of {location.saga_id} any more, which was {view.state} in the ledger"
    return f"the run of {location.saga_id} was closed before it took the signal"


def _already_received(view: SagaView, signal: Signal) -> bool:
    """Return whether the saga received this signal before it ended: it was delivered twice."""
    waits = [step for step in view.steps if step.uses == "wait"]
    if signal.reject is None:
        return any(isinstance(step.result, Mapping) and step.result.get("by") == signal.by for step in waits)
    return any(step.outcome == "rejected" and step.error and step.error.message == signal.reject for step in waits)
