"""The Temporal workflow of bulk execution: executes the commands of a :class:`BulkMachine`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, FailureError

from sagas.bulk.bulk_machine import BulkCommand, BulkMachine, Detach, NewSaga, PerformChunk, Record, Wake
from sagas.bulk.names import (
    CANCEL_UPDATE,
    CHUNK_ACTIVITY,
    CLAIM_ACTIVITY,
    CLAIMED_UPDATE,
    DETACH_ACTIVITY,
    DETACH_UPDATE,
    HELD_QUERY,
    RECORD_ACTIVITY,
)
from sagas.bulk.wire_format import decode_outcomes, encode_chunk, encode_state, pack_states, state_summary
from sagas.definition.snapshot import to_snapshot
from sagas.expressions.limits import WorkMeter
from sagas.input_limits import MAX_INPUT_VALUES
from sagas.machine.remaining_calls import RemainingCall
from sagas.machine.view import shrink_view
from sagas.presentation.batch_details import bulk_details
from sagas.protocol.messages import CancelRequested
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import BULK_WORKFLOW, MACHINE_QUERY, REFUSED_TYPE, VIEW_QUERY, input_digest
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, in_parts
from sagas.text.exact_json import decode_json
from sagas.text.shortening import counted
from sagas.workflow.activity_calls import chunk_heartbeat
from sagas.workflow.any_worker import for_any_worker
from sagas.workflow.bulk_request import BulkRequest, read_request
from sagas.workflow.client_messages import cancel_event
from sagas.workflow.delays import wait_for
from sagas.workflow.engine_activity import perform_until_answered
from sagas.workflow.failures import SagaApplicationError, activity_message, attempts_made, refused_error
from sagas.workflow.json_payloads import NO_INPUT, UnreadableValue, first_value, json_payload, raw_json
from sagas.workflow.limits import VIEW_LIMIT, PayloadThrottle
from sagas.workflow.query_answers import state_answer, view_answer
from sagas.workflow.run_reset import RefusedReset
from sagas.workflow.run_start import RunHeader, verify_bulk_start
from sagas.workflow.run_trust import RunTrust, latest_call
from sagas.workflow.signed_answers import UNSIGNED_ANSWER, is_believed_answer, outcome_of_failure
from sagas.workflow.summaries import limit_summary
from sagas.workflow.task_set import TaskSet
from sagas.workflow.waits import wait_until

HEARTBEAT = timedelta(seconds=5)
"""Without a sign of life for this long, the worker of an activity is taken for dead. A mistake is harmless: the guard
and the ledger know what has been done."""

_CHUNK_TIMEOUT = timedelta(seconds=60)
_ENGINE_TIMEOUT = timedelta(seconds=30)

_LEDGER_WORK = frozenset({CLAIM_ACTIVITY, RECORD_ACTIVITY})

CANCELLED = "the bulk workflow was cancelled"

_TIMER = "timer"
"""The only timer of a run: the next retry, pause or deadline of any of its sagas."""

MAX_STATES_BYTES = 512 * 1024
"""Bytes of JSON of the states in one activity, which may not be compressible."""


class BulkObserver(Protocol):
    """Called with what becomes of the sagas of a bulk workflow, also during replays."""

    def started(self, saga: str, count: int) -> None:
        """So many sagas have begun."""
        ...

    def ended(self, saga: str, state: str, reason: str, seconds: float) -> None:
        """A saga has ended, ``seconds`` after it began. ``reason``: its kind in the view, or empty."""
        ...


@workflow.defn(name=BULK_WORKFLOW)
class BulkWorkflow:
    """Runs many sagas of one definition."""

    def __init__(self) -> None:
        self.trust: RunTrust | None = None
        """Set by the worker before the run, as for a saga."""
        self.observer: BulkObserver | None = None
        """Set by the worker before the run; it must not change what the workflow does."""
        self._machine: BulkMachine | None = None
        self._header: RunHeader | None = None
        self._digests: dict[str, str] = {}
        self._existing: dict[str, dict[str, Any]] = {}
        self._refusal: str | None = None
        """Why the whole workflow is refused, or ends before its sagas; the messages that wait are answered with it."""
        self._refused: dict[str, str] = {}
        """Why sagas are not started, because of their inputs."""
        self._alone: dict[str, str] = {}
        self._detached: list[str] = []
        self._not_performed = False
        self._tasks = TaskSet()
        self._throttle = PayloadThrottle()
        self._next_in_line = asyncio.Lock()
        self._claimed_at = 0.0
        self._cancelled = False
        self._task = -1
        self._reset = RefusedReset()

    @workflow.run
    async def run(self, args: RawValue = NO_INPUT) -> Any:
        try:
            return await self._run_sagas(args)
        except SagaApplicationError as error:
            self._refusal = error.message
            await self._wait(workflow.all_handlers_finished)
            raise

    async def _run_sagas(self, args: RawValue) -> dict[str, Any]:
        self._reset.begin(self.trust)
        try:
            request = read_request(first_value([args], max_values=2 * MAX_INPUT_VALUES))
        except UnreadableValue as error:
            raise refused_error(f"the input of {BULK_WORKFLOW} cannot be read: {error}") from None
        starts = {saga.id: saga.input for saga in request.sagas}
        header, verified = await verify_bulk_start(request.saga, starts, self.trust, again=request.again)
        self._refused = {**request.refused, **verified.refused}
        for id, why in self._refused.items():
            workflow.logger.warning("%s is not started: %s", id, why)
        accepted = (saga for saga in request.sagas if saga.id not in self._refused)
        request = replace(
            request, sagas=[replace(saga, input=verified.completed.get(saga.id, saga.input)) for saga in accepted]
        )
        self._header = header
        machine = BulkMachine(header.definition, header.plan, header.variables, chunk_size=request.chunk_size)
        at = self._claimed_at = workflow.time()
        claiming = asyncio.create_task(self._claim(request, at))
        await self._wait(lambda: claiming.done() or self._reset.has_happened)
        self._reset.refuse()
        sagas = claiming.result()
        self._machine = machine
        machine.begin_task(WorkMeter())
        commands = machine.start(sagas, at, alone=self._alone)
        if self.observer is not None:
            began = sum(1 for member in machine.members.values() if member.progress.started_at is not None)
            self.observer.started(header.definition.saga, began)
        self._execute(commands)
        if self._cancelled:
            self._cancel_sagas()
        await self._wait(lambda: machine.finished or self._reset.has_happened)
        self._reset.refuse()
        await self._wait(workflow.all_handlers_finished)
        self._tasks.cancel(_TIMER)
        return self._result()

    async def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. A cancel in Temporal does not interrupt it, but cancels each saga."""
        await self._tasks.wait(condition, self._cancel_natively)

    def _cancel_natively(self) -> None:
        self._cancelled = True
        self._cancel_sagas()

    def _cancel_sagas(self) -> None:
        if self._machine is not None:
            message = workflow.cancellation_reason() or CANCELLED
            self._execute(self._current().cancel(CancelRequested(at=workflow.time(), message=message)))

    async def _claim(self, request: BulkRequest, at: float) -> list[NewSaga]:
        """The sagas to run: those whose ids are free, and those that may have been started on their own."""
        assert self._header is not None
        definition = self._header.definition
        self._digests = {saga.id: input_digest(saga.input) for saga in request.sagas}
        answer = await _perform(
            CLAIM_ACTIVITY,
            raw_json(
                {
                    "saga": definition.saga,
                    "definition": to_snapshot(definition),
                    "bulk_id": workflow.info().workflow_id,
                    "at": at,
                    "again": request.again,
                    "sagas": [[saga.id, self._digests[saga.id], dict(saga.labels)] for saga in request.sagas],
                }
            ),
            f"claim the ids of {counted(len(request.sagas), 'saga')}",
            may_end=_is_refusal,
        )
        self._existing = answer.get("existing", {})
        generations: Mapping[str, int] = answer.get("generations", {})
        self._alone = dict.fromkeys(answer.get("alone", ()), "it may have been started on its own")
        return [
            NewSaga(saga.id, saga.input, saga.labels, generations.get(saga.id, 1))
            for saga in request.sagas
            if saga.id not in self._existing
        ]

    def _result(self) -> dict[str, Any]:
        assert self._machine is not None
        result = {"counts": self._machine.counts(), "detached": self._detached, "existing": self._existing}
        return {**result, "refused": self._refused} if self._refused else result

    # --- commands ----------------------------------------------------------------------------------------------

    def _execute(self, commands: Sequence[BulkCommand]) -> None:
        for command in commands:
            match command:
                case PerformChunk():
                    self._tasks.start(f"chunk {command.id}", self._perform_chunk(command))
                case Wake():
                    self._tasks.cancel(_TIMER)
                    self._tasks.start(_TIMER, self._wake(command.seconds))
                case Detach():
                    self._tasks.start("detach", self._detach(command.sagas))
                case Record():
                    self._tasks.start("record", self._record(command.sagas))

    def _current(self) -> BulkMachine:
        """The machine, for an event of this workflow task."""
        machine = self._machine
        assert machine is not None
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task = task
            machine.begin_task(WorkMeter())
        return machine

    async def _wake(self, seconds: float) -> None:
        await wait_for(seconds)
        self._tasks.discard(_TIMER)
        machine = self._current()
        self._execute(machine.woken(workflow.time()))
        if workflow.info().is_continue_as_new_suggested():
            self._leave_long_history(machine)

    async def _perform_chunk(self, command: PerformChunk) -> None:
        first, attempt, lost = command.calls[0].call, 1, None
        outcomes: Sequence[Outcome | None] = ()
        assert self._machine is not None
        chunk = json_payload(encode_chunk(command.calls, self._machine.definition.saga))
        await self._wait_for_room(len(chunk.data))
        call = ""
        try:
            with for_any_worker(self._not_performed):
                handle = workflow.start_activity(
                    CHUNK_ACTIVITY,
                    RawValue(chunk),
                    activity_id=f"{first.id.partition('#')[0]}~{command.id}",
                    result_type=RawValue,
                    summary=limit_summary(f"{first.summary} × {len(command.calls)}"),
                    start_to_close_timeout=max(_CHUNK_TIMEOUT, timedelta(seconds=2 * first.timeout)),
                    heartbeat_timeout=chunk_heartbeat(first, HEARTBEAT),
                    retry_policy=RetryPolicy(
                        initial_interval=timedelta(seconds=0.2),
                        maximum_attempts=command.max_attempts,
                        backoff_coefficient=1.0,
                    ),
                )
            call = latest_call()
            result = await handle
            if not is_believed_answer(CHUNK_ACTIVITY, chunk, result.payload, f"chunk {command.id}", call=call):
                raise ValueError(UNSIGNED_ANSWER.message)
            ended = decode_json(result.payload.data)
            outcomes = decode_outcomes(ended, len(command.calls))
            attempt = int(ended["attempt"])
        except ActivityError as error:
            lost = error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            unreadable = Failure("Unreadable", f"the result of the chunk cannot be read: {error}")
            outcomes = [Outcome("unknown", failure=unreadable, attempt=1)] * len(command.calls)
        self._tasks.discard(f"chunk {command.id}")
        self._not_performed = any(outcome is not None and outcome.not_started for outcome in outcomes)
        machine = self._current()
        if lost is None:
            self._execute(machine.chunk_ended(command.id, outcomes, workflow.time(), attempt))
        else:
            made = attempts_made(lost, command.max_attempts) or 1
            outcome = outcome_of_failure(
                CHUNK_ACTIVITY, chunk, lost, f"chunk {command.id}", command.max_attempts, call=call, is_guarded=True
            )
            self._execute(machine.chunk_lost(command.id, outcome, workflow.time(), made))
        if workflow.info().is_continue_as_new_suggested():
            self._leave_long_history(machine)

    def _leave_long_history(self, machine: BulkMachine) -> None:
        self._execute(machine.detach_all("the history of the bulk workflow is long", workflow.time()))

    async def _wait_for_room(self, size: int) -> None:
        """Wait until a command may be sent, one after the other: a timer for each would fill the history."""
        async with self._next_in_line:
            await self._throttle.wait_for_room(size)

    async def _detach(self, sagas: Sequence[str]) -> None:
        assert self._machine is not None
        refused: dict[str, str] = {}
        for part in in_parts([self._line(id) for id in sagas], MAX_STATES_BYTES):
            summary = f"give {counted(len(part), 'saga')} workflows of their own"
            answer = await self._send(DETACH_ACTIVITY, self._departure(), part, summary)
            refused |= answer.get("refused", {})
        await self._end_detach([id for id in sagas if id not in refused], refused)

    async def _end_detach(self, sagas: Sequence[str], refused: Mapping[str, str]) -> None:
        """``refused``: those that Temporal does not accept, with its reasons. They keep no other saga from leaving."""
        while due := self._current().due_cancels(sagas):
            await asyncio.gather(*map(self._cancel_alone, due))
        self._detached += sagas
        for id, why in refused.items():
            workflow.logger.warning("%s cannot leave its bulk workflow: %s", id, why)
            self._tasks.start(f"detach {id}", self._detach_alone(id))
        self._execute(self._current().detached(sagas, workflow.time(), refused=refused))

    async def _detach_alone(self, id: str) -> None:
        """Try until it is accepted; Temporal shows the attempts and the reason."""
        request = {**self._departure(), "alone": True}
        await self._send(DETACH_ACTIVITY, request, [self._line(id)], f"give {id} a workflow of its own")
        self._tasks.discard(f"detach {id}")
        await self._end_detach([id], {})

    async def _cancel_alone(self, id: str) -> None:
        reason = workflow.cancellation_reason() or CANCELLED
        with contextlib.suppress(FailureError):  # it has ended
            await workflow.get_external_workflow_handle(id).cancel(reason=reason)

    def _departure(self) -> dict[str, Any]:
        """Return what all sagas that leave have in common."""
        machine, header = self._machine, self._header
        assert machine is not None
        assert header is not None
        return {
            "saga": machine.definition.saga,
            "definition": to_snapshot(machine.definition),
            "attributes": sorted(header.attributes),
            "bulk_id": workflow.info().workflow_id,
            "claimed_at": self._claimed_at,
        }

    async def _send(self, name: str, request: Mapping[str, Any], lines: Sequence[str], summary: str) -> dict[str, Any]:
        """Perform an activity with states of sagas; one that no payload carries is described instead."""
        payload = json_payload({**request, "sagas": pack_states(lines)})
        if len(payload.data) > MAX_PAYLOAD_BYTES:
            described = pack_states([self._describe(line) for line in lines])
            payload = json_payload({**request, "sagas": described})
        await self._wait_for_room(len(payload.data))
        return await _perform(name, RawValue(payload), summary)

    def _describe(self, line: str) -> str:
        """The line of a saga whose state is too large: with its view, without its machine."""
        assert self._machine is not None
        summary = state_summary(line)
        view = shrink_view(self._machine.view(summary["saga_id"]), VIEW_LIMIT)
        incomplete = f"the state of the saga has {len(line):,} bytes, which is more than Temporal accepts"
        return encode_state({**summary, "view": {**view.to_json(), "incomplete": incomplete}}, None)

    def _line(self, id: str) -> str:
        """The state of a saga that leaves or has ended."""
        assert self._machine is not None
        member = self._machine.members[id]
        progress = member.progress
        summary = {
            "saga_id": id,
            "state": progress.state,
            "generation": progress.highest_generation,
            "started_at": progress.started_at,
            "ended_at": progress.ended_at,
            "labels": dict(member.labels),
            "input_digest": self._digests[id],
            "why": member.why_leaving,
            "claimed": id not in self._alone,
        }
        return encode_state(summary, progress.compact_snapshot())

    async def _record(self, sagas: Sequence[str]) -> None:
        machine = self._machine
        assert machine is not None
        at = workflow.time()
        for part in in_parts([self._line(id) for id in sagas], MAX_STATES_BYTES):
            request = {
                "saga": machine.definition.saga,
                "digest": machine.definition.digest,
                "bulk_id": workflow.info().workflow_id,
                "at": at,
            }
            await self._send(RECORD_ACTIVITY, request, part, f"record the ends of {counted(len(part), 'saga')}")
        if self.observer is not None:
            for member in (machine.members[id] for id in sagas):
                began, ended = member.progress.started_at or at, member.progress.ended_at or at
                reason = (member.finish.reason if member.finish else None) or {}
                self.observer.ended(machine.definition.saga, member.state, reason.get("kind") or "", ended - began)
        self._execute(self._current().recorded(sagas, workflow.time()))

    # --- messages ----------------------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Let a message wait for a condition. Raises SagaApplicationError if the workflow ends before it is true."""
        await wait_until(lambda: condition() or self._refusal is not None)
        if not condition():
            raise refused_error(self._refusal or "")

    @workflow.update(name=CLAIMED_UPDATE, description="Which ids are taken: as soon as all of them are claimed.")
    async def claimed(self) -> dict[str, Any]:
        """``existing``, ``refused``: as in the result; ``alone``: the ids that may have been started on their own."""
        await self._until(lambda: self._machine is not None)
        return {"existing": self._existing, "alone": list(self._alone), "refused": self._refused}

    @workflow.update(name=DETACH_UPDATE, description="Give one saga a workflow of its own, so that it can be acted on.")
    async def detach(self, saga_id: str, cancel: dict[str, Any] | None = None) -> str:
        """Returns ``detached``, or the saga's state if it has ended here. ``cancel``: it is cancelled first."""
        await self._until(lambda: self._machine is not None)
        machine = self._current()
        if saga_id not in machine.members:
            return "unknown"
        event = None if cancel is None else cancel_event(cancel)
        self._execute(machine.detach(saga_id, "somebody acts on it", workflow.time(), cancel=event))
        await self._until(lambda: machine.is_settled(saga_id))
        member = machine.members[saga_id]
        return "detached" if member.has_left else member.state

    @workflow.update(name=CANCEL_UPDATE, description="Undo what these sagas have done, unless their pivots are done.")
    async def cancel(self, saga_ids: list[str], request: dict[str, Any] | None = None) -> dict[str, str]:
        """Return what the cancel means for each saga; without those that have left or ended, which are not
        cancelled.
        """
        await self._until(lambda: self._machine is not None)
        machine = self._current()
        responses = machine.cancel_responses(saga_ids)
        self._execute(machine.cancel(cancel_event(request or {}), responses))
        return dict(responses)

    @workflow.query(name=VIEW_QUERY, description="The view of one saga, as `saga show` prints it.")
    def view(self, saga_id: str, nonce: str = "") -> RawValue:
        if self._machine is None or saga_id not in self._machine.members:
            return raw_json(None)
        return view_answer(saga_id, shrink_view(self._machine.view(saga_id), VIEW_LIMIT).to_json(), nonce)

    @workflow.query(name=MACHINE_QUERY, description="The state of one saga's machine; `saga undo` starts from it.")
    def machine_state(self, saga_id: str, nonce: str = "") -> RawValue:
        if self._machine is None or saga_id not in self._machine.members:
            return raw_json(None)
        return state_answer(saga_id, self._machine.members[saga_id].leave_happy_path(), nonce)

    @workflow.query(name="counts", description="How many sagas are in each state.")
    def counts(self) -> dict[str, int]:
        return {} if self._machine is None else self._machine.counts()

    @workflow.query(name=HELD_QUERY, description="How many sagas wait for the end of each pause.")
    def held(self, saga: str | None = None) -> dict[str, int]:
        """``saga``: only sagas of this name."""
        return {} if self._machine is None or saga not in (None, self.saga) else self._machine.held()

    @property
    def saga(self) -> str:
        """The name of its sagas; empty before it has begun."""
        return "" if self._machine is None else self._machine.definition.saga

    def remaining_calls(self, *, interrupted: bool = False) -> dict[str, list[RemainingCall]]:
        """The calls that each saga may still make which has neither left nor been recorded, by its id."""
        members = {} if self._machine is None else self._machine.members
        return {
            id: member.leave_happy_path().remaining_calls(interrupted=interrupted)
            for id, member in members.items()
            if not member.has_left and not member.recorded
        }

    def details(self) -> str:
        """Markdown for the Web UI."""
        if self._machine is None:
            return "claims the ids of its sagas"
        return bulk_details(self._machine, self._detached)


def _is_refusal(type: str) -> bool:
    return type == REFUSED_TYPE


async def _perform(
    name: str,
    request: RawValue,
    summary: str,
    *,
    may_end: Callable[[str], bool] | None = None,
) -> dict[str, Any]:
    try:
        return await perform_until_answered(
            name,
            request,
            summary,
            timeout=_ENGINE_TIMEOUT,
            heartbeat=HEARTBEAT,
            may_end=may_end,
            local=name in _LEDGER_WORK,
        )
    except FailureError as error:
        raise refused_error(activity_message(error)) from None
