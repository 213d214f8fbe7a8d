"""The operations on sagas: cancel, pause, resume, signal, resolve and undo, each recorded in the ledger before."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from temporalio.service import RPCError

from saga_workers import intervention_answers as interventions
from saga_workers.decision_checks import check_answer, decision_keys
from saga_workers.interventions import preview_decision, resolve
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from saga_workers.privacy.sensitive_words import word_mask
from saga_workers.runtime.logs import fields
from saga_workers.serve.limits import OPERATION_TIMEOUT, QUERY_TIMEOUT
from saga_workers.serve.operation_request import OperationRequest
from saga_workers.serve.project_sagas import ProjectSagas
from saga_workers.temporal.known_silence import no_worker_answers
from saga_workers.temporal.temporal_runs import MAY_STILL_HAPPEN, NoAnswer
from saga_workers.temporal.worker_deployments import worker_help
from saga_workers.views.saga_view import read_view
from sagas.errors import SagaError, UsageError
from sagas.project import Project
from sagas.protocol.saga_view import SagaView

log = logging.getLogger("saga.serve")

Answer = dict[str, Any]


class UnknownSaga(UsageError):
    """There is no such saga of this project."""


class NotRecorded(SagaError):
    """The ledger does not take the record of a request, so nothing was done."""


def _outcome(error: Exception) -> str:
    """The outcome of a request that ended with this error, for the audit: no message, which may quote values."""
    match error:
        case UsageError():
            return "not valid"
        case NoAnswer() | LedgerUnavailable() | RPCError() | TimeoutError():
            return "unanswered"
        case _:
            return "refused"


class Operations:
    """Makes the requests of operators to the sagas of a project. ``sagas``: those that it may be about."""

    def __init__(self, locator: Locator, project: Project, sagas: ProjectSagas) -> None:
        self._locator = locator
        self._project = project
        self._sagas = sagas

    async def perform(self, request: OperationRequest, saga_id: str, *, who: str) -> Answer:
        """Record the request of the holder of the token ``who``, make it, and record its outcome.

        Raises UnknownSaga; NotRecorded if nothing was done; RefusedError and UsageError as the saga answers; NoAnswer
        if nobody does in time; LedgerUnavailable if only the ledger could say where the saga is.
        """
        view = await self._known_view(saga_id)
        with no_worker_answers(worker_help(view.incomplete or "") is not None):
            return await self._perform(request, view, saga_id, who)

    async def _perform(self, request: OperationRequest, view: SagaView, saga_id: str, who: str) -> Answer:
        number = await self._record(view, request, who)
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT):
                answer = await self._make(request, saga_id, who)
        except (SagaError, RPCError, TimeoutError) as error:
            await self._record_outcome(number, _outcome(error), saga_id)
            if isinstance(error, SagaError):
                raise
            message = f"nobody has answered the {request.operation} of {saga_id} in time; {MAY_STILL_HAPPEN}"
            raise NoAnswer(message) from error
        await self._record_outcome(number, answer["response"], saga_id)
        return answer

    async def preview(self, request: OperationRequest, saga_id: str, *, who: str) -> Answer:
        """The consequences of a decision, which is not made. Raises like :meth:`perform`."""
        view = await self._known_view(saga_id)
        with no_worker_answers(worker_help(view.incomplete or "") is not None):
            return await self._preview(request, saga_id, who)

    async def _preview(self, request: OperationRequest, saga_id: str, who: str) -> Answer:
        decision = request.decision(who)
        note = await check_answer(self._locator, saga_id, decision, lambda: self._project.actions)
        consequences = await preview_decision(self._locator, saga_id, decision)
        return {"id": saga_id, "dry_run": True, "next": consequences} | ({"note": note} if note else {})

    async def _known_view(self, saga_id: str) -> SagaView:
        try:
            return await self._sagas.require(await read_view(self._locator, saga_id, timeout=QUERY_TIMEOUT))
        except UsageError as error:
            raise UnknownSaga(error.message) from None

    async def _record(self, view: SagaView, request: OperationRequest, who: str) -> int:
        mask = await word_mask(self._locator, self._project, view.id) if request.has_words else str
        reason = mask(request.reason) if request.reason else None
        try:
            return await self._locator.ledger.record_access(
                view.id, request.operation, who=who, reason=reason, detail=request.detail(mask)
            )
        except LedgerUnavailable as error:
            log.error("nothing was done: %s", error.message, extra=fields(saga=view.id))
            message = "the ledger does not answer, in which this request must be recorded first; nothing was done"
            raise NotRecorded(message) from error

    async def _record_outcome(self, number: int, outcome: str, saga_id: str) -> None:
        try:
            await self._locator.ledger.record_outcome(number, outcome)
        except LedgerUnavailable as error:
            log.warning("the outcome %s is not recorded: %s", outcome, error.message, extra=fields(saga=saga_id))

    async def _make(self, request: OperationRequest, saga_id: str, who: str) -> Answer:
        match request.operation:
            case "cancel":
                return await interventions.cancel(self._locator, saga_id, reason=request.reason, who=who)
            case "pause":
                return await interventions.pause(self._locator, saga_id, reason=request.reason, who=who)
            case "resume":
                return await interventions.resume(self._locator, saga_id, reason=request.reason, who=who)
            case "signal":
                data, reject = request.fields.get("data"), request.fields.get("reject")
                name = request.signal or ""
                return await interventions.signal(self._locator, saga_id, name, data, who=who, reject=reject)
            case "undo":
                queue = self._project.settings.temporal.task_queue
                return await interventions.undo(
                    self._locator, saga_id, reason=request.reason, who=who, task_queue=queue
                )
            case "resolve":
                return await self._decide(request.decision(who), saga_id)

    async def _decide(self, decision: Answer, saga_id: str) -> Answer:
        note = await check_answer(self._locator, saga_id, decision, lambda: self._project.actions)
        keys = decision_keys(self._project.settings, decision)
        view = await resolve(self._locator, saga_id, decision, keys)
        answer = {"id": saga_id, "response": "accepted", "state": view.state}
        return answer | ({"note": note} if note else {})
