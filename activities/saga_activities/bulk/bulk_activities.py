"""The activities of bulk workflows that work on the ledger, and the one that performs chunks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import Any

from saga_activities.attempt_admission import AttemptAdmission
from saga_activities.attempt_context import (
    AttemptContext,
    ChunkObserver,
    ObservedChunk,
    repeat_heartbeats,
    with_masked_heartbeats,
)
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer, outcome_without_worker
from saga_activities.bulk.result_room import encode_bounded
from saga_activities.conflict_retries import schedule_conflict
from saga_activities.connections import DatabaseConnections
from saga_activities.ledger import claims
from saga_activities.ledger.records import NewClaim, RunRecord
from saga_activities.ledger.rows import document_text, storable
from saga_activities.reported_failure import reported_failure
from sagas.bulk.names import (
    CHUNK_ACTIVITY,
    CLAIM_ACTIVITY,
    DELAY_ACTIVITY,
    DETACH_ACTIVITY,
    LONGEST_DELAY,
    RECORD_ACTIVITY,
    TAKE_ACTIVITY,
)
from sagas.bulk.wire_format import decode_chunk, unpack_states
from sagas.errors import RefusedError, SagaError, Unequipped, UsageError
from sagas.protocol.compression import compress
from sagas.protocol.outcomes import Failure, Outcome, mask_failure
from sagas.protocol.payloads import Invocation
from sagas.text.exact_json import decode_json
from sagas.text.masked_texts import masking

DetachSagas = Callable[
    [Mapping[str, Any], Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]], Awaitable[dict[str, str]]
]
"""Starts a workflow for each saga, given by its summary and its machine; also takes the request they are from. Returns
those that Temporal refuses for good, with its reasons."""


class BulkActivities:
    """The activities of one worker. ``ledger`` is the connection of the ledger; without one nothing can be claimed."""

    def __init__(
        self,
        bodies: ActionBodies,
        databases: DatabaseConnections,
        ledger: str | None,
        detach: DetachSagas,
        admission: AttemptAdmission,
        observers: Sequence[ChunkObserver] = (),
        ledger_id: Callable[[], str] = str,
    ) -> None:
        self._bodies = bodies
        self._databases = databases
        self._ledger = ledger
        self._start_detached = detach
        self._admission = admission
        self._observers = tuple(observers)
        self._ledger_id = ledger_id

    async def perform(self, activity_type: str, request: Mapping[str, Any], attempt: AttemptContext) -> dict[str, Any]:
        """Perform one of the activities. Raises KeyError, TypeError, ValueError or AttributeError if it is malformed,
        RefusedError without a ledger, and errors of its database."""
        with repeat_heartbeats(attempt) as beaten:
            if activity_type == CHUNK_ACTIVITY:
                return await self._perform_chunk(request, beaten)
            perform = {
                CLAIM_ACTIVITY: self._claim,
                RECORD_ACTIVITY: self._record,
                DETACH_ACTIVITY: self._detach,
                DELAY_ACTIVITY: _delay,
                TAKE_ACTIVITY: self._take,
            }
            return await perform[activity_type](request)

    def _engine(self) -> Any:
        if self._ledger is None:
            raise RefusedError("bulk execution needs a ledger: set [ledger] connection, and run `saga setup`")
        return self._databases.engine(self._ledger)

    async def _perform_chunk(self, request: Mapping[str, Any], attempt: AttemptContext) -> dict[str, Any]:
        calls = decode_chunk(request, self._ledger_id())
        guard_spec = calls[0].guard
        assert guard_spec is not None
        outcomes: Sequence[Outcome | None]
        seconds = attempt.deadline - time.time()
        admitted = await self._admission.admit(
            calls[0], calls[0].saga, attempt.number, seconds, is_single=len(calls) == 1
        )
        if isinstance(admitted, Outcome):
            held = replace(admitted, failure=reported_failure(admitted))
            return encode_bounded([held] + [None] * (len(calls) - 1), attempt.number)
        try:
            performer = ChunkPerformer(self._databases.guard(guard_spec.connection), self._bodies)
            observed = ObservedChunk(calls, attempt.number)
            with masking([text for call in calls for text in call.sensitive_texts]), ExitStack() as observing:
                for observer in self._observers:
                    observing.enter_context(observer(observed))
                performing = performer.perform(calls, with_masked_heartbeats(attempt))
                ended = await self._admission.make_chunk(admitted, performing)
                outcomes = observed.outcomes = [
                    None if outcome is None else _reported(outcome, call, attempt.number)
                    for call, outcome in zip(calls, ended, strict=True)
                ]
        except Unequipped as error:
            outcomes = [outcome_without_worker(error)] * len(calls)
        except UsageError as error:  # of the connection: nothing was performed
            outcomes = [Outcome("failed", failure=Failure("definition", str(error)), retryable=False)] * len(calls)
        return encode_bounded(
            [
                result if result is None or result.kind == "done" else replace(result, failure=reported_failure(result))
                for result in outcomes
            ],
            attempt.number,
        )

    async def _claim(self, request: Mapping[str, Any]) -> dict[str, Any]:
        at = claims.seconds_to_time(request["at"])
        new = [NewClaim(id, digest, labels) for id, digest, labels in request["sagas"]]
        result = await claims.claim(
            self._engine(),
            new,
            saga=request["saga"],
            bulk_id=request["bulk_id"],
            at=at,
            again=request["again"],
            definition=request["definition"],
        )
        digests = {claim.saga_id: claim.input_digest for claim in new}
        existing: dict[str, dict[str, Any]] = {}
        for id, run in result.ended.items():
            same = run.saga == request["saga"] and run.input_digest in (None, digests[id])
            existing[id] = {"state": run.state, "same": same}
        alone: list[str] = []
        for id, held in result.taken.items():
            if held.bulk_id is None:
                alone.append(id)  # only Temporal knows whether its start was carried out
            else:
                same = held.saga == request["saga"] and held.input_digest == digests[id]
                existing[id] = {"state": "RUNNING", "same": same}
        generations = {id: run.generation + 1 for id, run in result.earlier.items()}
        return {"existing": existing, "alone": alone, "generations": generations}

    async def _detach(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """``refused``: the sagas that Temporal does not accept, and why; an error if it is the only one."""
        lines = unpack_states(request["sagas"])
        refused = {summary["saga_id"]: summary["view"]["incomplete"] for summary, machine in lines if not machine}
        states = [(summary, decode_json(machine)) for summary, machine in lines if machine]
        refused |= await self._start_detached(request, states)
        ids = [summary["saga_id"] for summary, _ in states if summary["saga_id"] not in refused]
        await claims.hand_over(self._engine(), ids, bulk_id=request["bulk_id"])
        if refused and request.get("alone"):
            raise SagaError(next(iter(refused.values())))
        return {"refused": refused} if refused else {}

    async def _record(self, request: Mapping[str, Any]) -> dict[str, Any]:
        at = claims.seconds_to_time(request["at"])
        records = [_record_of(summary, text, request, at) for summary, text in unpack_states(request["sagas"])]
        await claims.record(self._engine(), records, bulk_id=request["bulk_id"])
        return {}

    async def _take(self, request: Mapping[str, Any]) -> dict[str, Any]:
        claimed_at = claims.seconds_to_time(request["claimed_at"])
        taken = await claims.take(self._engine(), request["saga_id"], claimed_at=claimed_at, run_id=request["run_id"])
        return {"taken": taken}


async def _delay(request: Mapping[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(min(float(request["seconds"]), LONGEST_DELAY))
    return {}


def _reported(outcome: Outcome, call: Invocation, number: int) -> Outcome:
    """The outcome of one call of a chunk as the saga learns it. ``number`` is that of the chunk's attempt."""
    return mask_failure(schedule_conflict(outcome, call, call.earlier_attempts + number), call.sensitive_texts)


def _record_of(summary: Mapping[str, Any], text: str, request: Mapping[str, Any], at: datetime) -> RunRecord:
    return RunRecord(
        saga_id=summary["saga_id"],
        started_at=claims.seconds_to_time(summary["started_at"]),
        saga=request["saga"],
        generation=summary["generation"],
        digest=request["digest"],
        input_digest=summary["input_digest"],
        state=summary["state"],
        labels=storable(summary["labels"]),
        ended_at=claims.seconds_to_time(summary["ended_at"]),
        ran_until=claims.seconds_to_time(summary["ended_at"]),
        updated_at=at,
        story="null" if text else document_text(summary["view"]),
        machine=compress(text.encode(), 1) if text else None,
        bulk_id=request["bulk_id"],
    )
