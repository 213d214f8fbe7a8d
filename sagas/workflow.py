"""The Temporal workflow of every saga: it carries out what the machine asks and decides nothing.

One dynamic workflow serves all sagas, so that the Web UI shows each under its own name. Commands of the machine
become activities, timers and child workflows; their ends, signals and updates become its events. This is the only
module of the engine that knows Temporal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import (
    Priority,
    RawValue,
    RetryPolicy,
    SearchAttributeKey,
)
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TimeoutError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from sagas.carried import carried, read_header
    from sagas.details import details_table
    from sagas.machine.arguments import DefinitionFault
    from sagas.machine.commands import (
        Call,
        CancelCall,
        CancelSaga,
        CancelTimer,
        Command,
        Finish,
        Record,
        StartSaga,
        StartTimer,
        UndoSaga,
    )
    from sagas.machine.events import (
        CallEnded,
        CancelRequested,
        DecisionMade,
        Event,
        SagaEnded,
        SignalReceived,
        Started,
        TimerFired,
        UndoRequested,
    )
    from sagas.machine.machine import Machine
    from sagas.machine.story import blank, shrink
    from sagas.outcomes import Failure, Outcome
    from sagas.wire import (
        CANCEL_SIGNAL,
        DEFINITION_HEADER,
        GENERATION_HEADER,
        LOAD,
        RESIDUE_SIGNAL,
        STARTED_MEMO,
        UNDO_SUFFIX,
        decode_done,
        decode_failure,
        encode_call,
        pack_state,
        unpack_state,
    )

PAYLOAD_LIMIT = 2 * 1024 * 1024 - 16 * 1024
"""Bytes of one payload: Temporal refuses 2 MiB, and by failing the task for ever; so we refuse first."""

TASK_LIMIT = 1024 * 1024
"""Bytes of commands in one workflow task; the wire carries 4 MiB."""

COMMAND_WEIGHT = 8 * 1024
"""What a small command counts as: hundreds of starts in one task would meet the SDK's two seconds on a busy machine."""

STORY_LIMIT = 512 * 1024
SUMMARY_LIMIT = 200
"""Characters of a summary: Temporal takes 400 bytes, and refuses more by failing the task for ever."""

HISTORY_ROOM = 40_000
"""Events a run may have before it must continue as a new one; Temporal ends it at 51,200."""

TURNS = 8
"""Turns of the event loop from an activity's result to the code that awaits it; it takes four."""

MARK = "sagas/1"


class Sentence(ApplicationError):
    """A failure that people read as one sentence: Temporal would add where in the engine it was raised."""

    @property
    def __traceback__(self) -> None:
        return None

    @__traceback__.setter
    def __traceback__(self, value: object) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Python keeps the real one, which the log shows; only what Temporal sends is without it."""


@workflow.defn(dynamic=True)
class SagaWorkflow:
    """Runs any saga."""

    def __init__(self) -> None:
        self._machine: Machine | None = None
        self._early: list[Event] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._calls: dict[str, workflow.ActivityHandle[Any]] = {}
        self._doomed: set[str] = set()
        self._asked_to_stop: set[str] = set()
        self._started: dict[str, workflow.ChildWorkflowHandle[Any, Any]] = {}
        self._attributes: frozenset[str] = frozenset()
        self._finish: Finish | None = None
        self._crash: Exception | None = None
        self._begun = False
        self._native_cancel = False
        self._continuing = False
        self._rooted = False
        self._recorded = False
        self._children_left: dict[str, Mapping[str, Any]] = {}
        self._bytes = 0
        self._task = 0

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Any:
        first = await self._opened(args)
        self._take(first)
        while self._early:
            # What came before the start: the machine hears of the start first.
            self._take(self._early.pop(0))
        while self._finish is None:
            await self._rest(lambda: self._finish is not None or self._crash is not None or self._ready_to_continue)
            if self._crash is not None:
                raise self._crash
            if self._finish is None:
                await self._rest(workflow.all_handlers_finished)
                if self._ready_to_continue:
                    self._continue()
        await self._rest(workflow.all_handlers_finished)
        await self._tell_parent(self._finish)
        return self._close(self._finish)

    # --- the beginning -----------------------------------------------------------------------------------------

    async def _open(self, args: Sequence[RawValue]) -> Event:
        """Build the machine: from a continued run, from the header our client sends, or from `saga.load`."""
        info = workflow.info()
        values = [workflow.payload_converter().from_payload(arg.payload) for arg in args]
        value = values[0] if values else None
        if info.continued_run_id is not None and isinstance(value, dict) and value.get("_saga") == MARK:
            return self._resume(value)
        undo = info.workflow_id.endswith(UNDO_SUFFIX)
        definition = info.headers.get(DEFINITION_HEADER)
        if undo:
            loaded = await self._load(value, undo)
            self._attributes = frozenset(loaded.get("attributes", ()))
            self._machine = Machine.restore(loaded["machine"])
            if not self._machine.can_undo:
                raise _refused(f"{info.workflow_id.removesuffix(UNDO_SUFFIX)} cannot be undone")
            who, reason = loaded.get("who") or "unknown", loaded.get("reason") or "undone"
            return UndoRequested(at=workflow.time(), reason=reason, who=who)
        if definition is not None:
            known = read_header(definition.data)
        else:
            loaded = await self._load(value, undo)
            known, value = carried(loaded), loaded["input"]
        self._attributes = known.attributes
        generation = info.headers.get(GENERATION_HEADER)
        self._machine = Machine(
            known.definition,
            value,
            info.workflow_id,
            generation=1 if generation is None else int(workflow.payload_converter().from_payload(generation)),
            variables=known.variables,
            plan=known.plan,
            parent=info.parent.workflow_id if info.parent else None,
        )
        self._label(self._machine)
        return Started(at=workflow.time())

    def _label(self, machine: Machine) -> None:
        """Our client sends the labels with the start; whoever else started it left that to us."""
        try:
            labels = [f"{name}={value}" for name, value in machine.labels().items()]
        except DefinitionFault as error:
            raise _refused(str(error)) from None
        key = SearchAttributeKey.for_keyword_list("SagaLabels")
        if labels and key.name in self._attributes and key not in workflow.info().typed_search_attributes:
            workflow.upsert_search_attributes([key.value_set(labels)])

    async def _load(self, value: Any, undo: bool) -> dict[str, Any]:
        info = workflow.info()
        request = {
            "saga": info.workflow_type,
            "input": value,
            "undo_of": info.workflow_id.removesuffix(UNDO_SUFFIX) if undo else None,
        }
        try:
            return await workflow.execute_activity(
                LOAD,
                request,
                activity_id=LOAD,
                result_type=dict,
                summary=_short(f"read the definition of {info.workflow_type}"),
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(maximum_attempts=1_000_000, maximum_interval=timedelta(seconds=10)),
            )
        except ActivityError as error:
            cause = error.cause
            message = cause.message if isinstance(cause, ApplicationError) else str(cause or error)
            raise _refused(message) from None

    def _resume(self, carried: Mapping[str, Any]) -> Event:
        self._attributes = frozenset(carried["attributes"])
        self._native_cancel = carried["native_cancel"]
        self._recorded = carried["recorded"]
        self._machine = machine = Machine.restore(unpack_state(carried["machine"]))
        for command in machine.outstanding(workflow.time()):
            self._execute(command)
        return TimerFired(id="continued", at=workflow.time())

    def _continue(self) -> None:
        """Move the whole machine to a new run, unless this one has to go on."""
        assert self._machine is not None
        machine = pack_state(self._machine.snapshot())
        if len(machine) >= PAYLOAD_LIMIT - 64 * 1024:
            workflow.logger.warning("the state has %d bytes and cannot move to a new run", len(machine))
            self._rooted = True
        elif not self._closes_canceled:
            carried = {
                "_saga": MARK,
                "machine": machine,
                "attributes": sorted(self._attributes),
                "native_cancel": self._native_cancel,
                "recorded": self._recorded,
            }
            workflow.continue_as_new(carried, memo={STARTED_MEMO: self._machine.started_at})
        self._continuing = False
        for command in self._machine.outstanding(workflow.time()):
            if isinstance(command, Call | CancelCall | StartSaga | UndoSaga):
                self._execute(command)

    @property
    def _closes_canceled(self) -> bool:
        """Only the run that Temporal cancelled can close Canceled, so it goes on while its history has room."""
        return self._native_cancel and workflow.info().get_current_history_length() < HISTORY_ROOM

    # --- events in, commands out -------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        if not self._begun:
            self._early.append(event)
        else:
            self._take(event)

    def _take(self, event: Event) -> None:
        machine = self._machine
        assert machine is not None
        self._begun = True
        if self._finish is not None:
            return
        if self._should_continue(machine):
            # From here on nothing new starts; when all that runs has ended, the whole machine moves to a new run.
            self._continuing = True
        for command in machine.next(event):
            self._execute(command)

    def _should_continue(self, machine: Machine) -> bool:
        """The history is long. A nested saga reports to this very run, and may take days: not while one runs."""
        if self._continuing or self._rooted or not workflow.info().is_continue_as_new_suggested():
            return False
        return not machine.child_running and not self._closes_canceled

    def _execute(self, command: Command) -> None:
        match command:
            case Call():
                if self._continuing:
                    return  # it stays open in the machine, and is asked again by the next run
                self._spawn(command.id, self._call(command))
            case CancelCall():
                self._cancel_call(command.id)
            case StartTimer():
                self._spawn(f"timer {command.id}", self._timer(command))
            case CancelTimer():
                task = self._tasks.pop(f"timer {command.id}", None)
                if task is not None:
                    task.cancel()
            case StartSaga():
                if self._continuing:
                    return
                self._spawn(command.id, self._child(command.id, command.saga, command.saga_id, command.input))
            case CancelSaga():
                self._spawn(f"cancel {command.id}", self._cancel_child(command))
            case UndoSaga():
                if self._continuing:
                    return
                request = {"reason": command.message, "who": workflow.info().workflow_id}
                self._spawn(command.id, self._child(command.id, command.saga, command.saga_id + UNDO_SUFFIX, request))
            case Record():
                self._record(command)
            case Finish():
                self._finish = command

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - handed to run(), which fails the workflow task with it
                self._crash = error

        self._tasks[name] = asyncio.create_task(run())

    # --- activities --------------------------------------------------------------------------------------------

    async def _call(self, call: Call) -> None:
        argument = encode_call(call, workflow.info().workflow_id.removesuffix(UNDO_SUFFIX))
        try:
            payload = _payload(argument, f"the arguments of {call.action}")
        except DefinitionFault as error:
            failure = Failure("definition", str(error))
            self._end(call.id, Outcome("failed", failure=failure, attempt=1, retryable=False), 0)
            return
        await self._pace(len(payload.data))
        if call.id in self._doomed:
            self._doomed.discard(call.id)
            failure = Failure("Cancelled", "it was cancelled before it started")
            self._end(call.id, Outcome("failed", failure=failure, attempt=1, retryable=False), 0)
            return
        try:
            handle = self._start(call, RawValue(payload))
            self._calls[call.id] = handle
            value = await handle
        except FailureError as error:
            outcome = _failed(error)
        except asyncio.CancelledError:
            if call.id not in self._asked_to_stop:
                raise  # the run itself is being put away
            # The SDK loses an end that comes with the cancel, and a local attempt's in its back-off. Nobody knows.
            outcome = Outcome("unknown", failure=Failure("Cancelled", "the attempt was cancelled"))
        else:
            outcome = decode_done(value)
        self._calls.pop(call.id, None)
        self._asked_to_stop.discard(call.id)
        self._end(call.id, outcome, 0 if outcome.not_started else outcome.attempt)

    def _start(self, call: Call, argument: RawValue) -> workflow.ActivityHandle[Any]:
        retry = call.retry
        policy = RetryPolicy(
            initial_interval=timedelta(seconds=retry.initial_interval),
            backoff_coefficient=retry.backoff_coefficient,
            maximum_interval=timedelta(seconds=max(retry.max_interval, retry.initial_interval)),
            maximum_attempts=1 if call.at_most_once and not call.local else max(retry.max_attempts, 1),
        )
        give_up = None if retry.give_up_after is None else timedelta(seconds=retry.give_up_after)
        timeout = timedelta(seconds=call.timeout)
        if call.execution == "local":
            return workflow.start_local_activity(
                call.action,
                argument,
                activity_id=call.id,
                summary=_short(call.summary),
                start_to_close_timeout=timeout,
                schedule_to_close_timeout=give_up,
                retry_policy=policy,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
        return workflow.start_activity(
            call.action,
            argument,
            activity_id=call.id,
            summary=_short(call.summary),
            task_queue=call.task_queue,
            start_to_close_timeout=timeout,
            schedule_to_close_timeout=give_up,
            heartbeat_timeout=None if call.heartbeat is None else timedelta(seconds=call.heartbeat),
            retry_policy=policy,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            priority=Priority(priority_key=call.priority, fairness_key=call.fairness_key)
            if call.priority is not None or call.fairness_key is not None
            else Priority.default,
        )

    def _cancel_call(self, id: str) -> None:
        if id in self._calls:
            self._spawn(f"cancel {id}", self._cancel_attempt(id))
        elif id in self._tasks:
            self._doomed.add(id)

    async def _cancel_attempt(self, id: str) -> None:
        """Cancel an attempt, unless its end has come with the very task that leads to the cancel.

        Cancelling an activity whose result has arrived but was not read yet loses the result: the SDK then raises a
        bare CancelledError. So everything that has arrived is heard first.
        """
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._tasks.pop(f"cancel {id}", None)
        handle = self._calls.get(id)
        if handle is not None:
            self._asked_to_stop.add(id)
            handle.cancel()

    async def _pace(self, size: int) -> None:
        """Spread many large commands over several workflow tasks."""
        size = max(size, COMMAND_WEIGHT)
        while self._sent_in_this_task() + size > TASK_LIMIT and self._bytes > 0:
            await workflow.sleep(timedelta(milliseconds=1), summary="spread many commands over several tasks")
        self._bytes += size

    def _sent_in_this_task(self) -> int:
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task, self._bytes = task, 0
        return self._bytes

    def _end(self, id: str, outcome: Outcome, attempts: int | None) -> None:
        self._tasks.pop(id, None)
        self._feed(CallEnded(id=id, outcome=outcome, at=workflow.time(), attempts=attempts))

    # --- timers and nested sagas -------------------------------------------------------------------------------

    async def _timer(self, timer: StartTimer) -> None:
        await workflow.sleep(timedelta(seconds=timer.seconds), summary=_short(timer.summary or timer.id))
        self._tasks.pop(f"timer {timer.id}", None)
        self._feed(TimerFired(id=timer.id, at=workflow.time()))

    async def _child(self, id: str, saga: str, saga_id: str, input: Any) -> None:
        undo = saga_id.endswith(UNDO_SUFFIX)
        state, story = "COMPENSATED" if undo else "COMPLETED", None
        try:
            payload = _payload(input, f"the input of {saga}")
            await self._pace(len(payload.data))
            handle = await workflow.start_child_workflow(
                saga,
                RawValue(payload),
                id=saga_id,
                static_summary=_short(f"{'↩ undo for' if undo else 'part of'} {workflow.info().workflow_id}"),
                # The parent asks for a cancel by signal and waits; Temporal never does it on its own.
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            )
            self._started[id] = handle
            output = await handle
            story = {"output": output}
            if saga_id in self._children_left:
                # It closed Completed, past its commit point, but told us that something stayed or is missing.
                state, story = "RESIDUE", {**self._children_left.pop(saga_id), "output": output}
        except DefinitionFault as error:
            state, story = "REFUSED", {"reason": {"message": str(error)}}
        except WorkflowAlreadyStartedError:
            state, story = "REFUSED", {"reason": {"message": f"there is a run with the id {saga_id} already"}}
        except ChildWorkflowError as error:
            state, story = _child_end(error)
        self._started.pop(id, None)
        self._tasks.pop(id, None)
        self._feed(SagaEnded(id=id, state=state, at=workflow.time(), story=story))  # pyright: ignore[reportArgumentType]

    async def _tell_parent(self, finish: Finish) -> None:
        """A nested saga that ends RESIDUE past its commit point closes Completed: its parent has to hear of it."""
        parent = workflow.info().parent
        if parent is None or finish.state != "RESIDUE" or not finish.committed or self._machine is None:
            return
        story = shrink(self._machine.story(workflow.time()), STORY_LIMIT)
        told = {name: story[name] for name in ("id", "state", "phase", "committed_at", "residue")}
        handle = workflow.get_external_workflow_handle(parent.workflow_id, run_id=parent.run_id)
        task = asyncio.create_task(handle.signal(RESIDUE_SIGNAL, told))
        await self._rest(task.done)
        if (trouble := task.exception()) is not None:
            workflow.logger.info("the parent %s is over, it could not be told: %s", parent.workflow_id, trouble)

    async def _cancel_child(self, command: CancelSaga) -> None:
        # A signal to a child that has not started yet would be lost.
        await workflow.wait_condition(lambda: command.id in self._started or command.id not in self._tasks)
        self._tasks.pop(f"cancel {command.id}", None)
        child = self._started.get(command.id)
        if child is None:
            return
        try:
            await child.signal(CANCEL_SIGNAL, command.message)
        except ApplicationError as error:
            # It is over already; its end is on the way as a SagaEnded of its own.
            workflow.logger.info("nested saga %s could not be told to cancel: %s", command.saga_id, error)

    # --- messages ----------------------------------------------------------------------------------------------

    @workflow.signal(name=CANCEL_SIGNAL, description="The parent saga goes backward, and takes this one with it.")
    def cancelled_by_parent(self, message: str = "") -> None:
        self._feed(CancelRequested(at=workflow.time(), kind="parent", message=message))

    @workflow.signal(name=RESIDUE_SIGNAL, description="A nested saga of this one has left a residue.")
    def child_left_residue(self, story: dict[str, Any]) -> None:
        self._children_left[story["id"]] = story

    @workflow.signal(dynamic=True, description="Answers a `wait` step of that name.")
    def signalled(self, name: str, args: Sequence[RawValue]) -> None:
        values = [workflow.payload_converter().from_payload(arg.payload) for arg in args]
        data = values[0] if values else None
        event = SignalReceived(name=name, at=workflow.time(), data=data)
        if isinstance(data, dict) and isinstance(data.get("_saga"), dict):
            envelope = data["_saga"]
            event = SignalReceived(
                name=name,
                at=workflow.time(),
                data=data.get("data"),
                who=envelope.get("by"),
                reject=envelope.get("reject"),
            )
        self._feed(event)

    @workflow.query(name="saga", description="The whole story of this saga, as `saga show` prints it.")
    def story(self) -> dict[str, Any]:
        if self._machine is None:
            return blank(workflow.info().workflow_id, workflow.info().workflow_type)
        return shrink(self._machine.story(workflow.time()), STORY_LIMIT)

    @workflow.query(name="machine", description="The machine's state; `saga undo` starts from it.")
    def machine_state(self) -> str | None:
        if self._machine is None:
            return None
        return pack_state(self._machine.snapshot())

    @workflow.update(name="cancel", description="Undo what was done, if the point of no return is not passed.")
    async def cancel(self, request: dict[str, Any] | None = None) -> str:
        await workflow.wait_condition(lambda: self._begun)
        assert self._machine is not None
        answer = self._machine.cancel_answer()
        request = request or {}
        if answer in ("accepted", "recorded"):
            self._feed(CancelRequested(at=workflow.time(), who=request.get("who"), message=request.get("reason") or ""))
        return answer

    @workflow.update(name="resolve", description="Decide about a stuck step: retry, done, skip or compensate.")
    async def resolve(self, decision: dict[str, Any]) -> dict[str, Any]:
        self._feed(_decision(decision))
        return self.story()

    @resolve.validator
    def check_decision(self, decision: dict[str, Any]) -> None:
        if self._machine is None or not self._begun:
            raise _refused("the saga has not begun yet; try again")
        try:
            event = _decision(decision)
        except (KeyError, TypeError, AttributeError) as error:
            raise _refused(f"a decision needs step, decision, reason and who: {error}") from None
        refusal = self._machine.check_decision(event)
        if refusal is not None:
            raise _refused(refusal)

    # --- what people see, and the end --------------------------------------------------------------------------

    def details(self) -> str:
        """The "current details" of the Web UI as they are now; made only when somebody looks."""
        if self._machine is None:
            return ""
        return details_table(self._machine.story(workflow.time()))

    @property
    def ended(self) -> Finish | None:
        """How the saga ended, for metrics and traces; None while it runs."""
        return self._finish

    @property
    def started_at(self) -> float | None:
        """When the saga began, in whichever run of its chain; seconds since the epoch."""
        return self._machine.started_at if self._machine is not None else None

    def _record(self, record: Record) -> None:
        if record.state == "PARKED":
            workflow.logger.warning("parked at %s: `saga parked` shows what a person may decide", record.step)
        values = {"SagaState": record.state, "SagaStep": record.step, "SagaReason": record.reason}
        updates = [
            SearchAttributeKey.for_keyword(name).value_set(value)
            for name, value in values.items()
            if value is not None and name in self._attributes
        ]
        if updates:
            self._recorded = True
            workflow.upsert_search_attributes(updates)

    def _close(self, finish: Finish) -> Any:
        assert self._machine is not None
        story = shrink(self._machine.story(workflow.time()), STORY_LIMIT)
        workflow.upsert_memo({"saga": story})
        if finish.state == "COMPLETED" and self._recorded:
            # On the plain path the close status says it; here an earlier state would go on saying something else.
            self._record(Record("COMPLETED"))
        if finish.state == "COMPLETED" or (finish.state == "RESIDUE" and finish.committed):
            return _fitting(finish.output)
        undone = workflow.info().workflow_id.endswith(UNDO_SUFFIX)
        if undone and finish.state == "COMPENSATED":
            return _fitting(finish.output)
        reason = dict(finish.reason or {})
        cancelled = self._native_cancel and workflow.cancellation_reason() is not None
        if finish.state == "COMPENSATED" and cancelled and reason.get("kind") == "cancelled":
            raise CancelledError("cancelled, and everything done was undone")
        raise Sentence(
            _last_sentence(finish, reason),
            story,
            type="SagaCompensated" if finish.state == "COMPENSATED" else "SagaResidue",
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        )

    @property
    def _ready_to_continue(self) -> bool:
        return self._continuing and self._machine is not None and not self._busy()

    def _busy(self) -> bool:
        return any(not name.startswith("timer ") for name in self._tasks)

    def _cancelled(self) -> None:
        """Temporal's own cancel: one more event. The run closes Canceled if this cancel is what leads backward."""
        machine = self._machine
        if not self._begun or (machine is not None and machine.cancel_answer() in ("accepted", "recorded")):
            self._native_cancel = True
        self._feed(CancelRequested(at=workflow.time(), message=workflow.cancellation_reason() or ""))

    async def _rest(self, condition: Any) -> None:
        """Wait; a native cancel on the way is one more event and interrupts nothing."""
        while not condition():
            try:
                await workflow.wait_condition(condition)
            except asyncio.CancelledError:
                self._cancelled()

    async def _opened(self, args: Sequence[RawValue]) -> Event:
        task = asyncio.create_task(self._open(args))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                self._cancelled()
        return task.result()


def _payload(value: Any, what: str) -> Payload:
    """``value`` as Temporal carries it. Raises DefinitionFault: it is not JSON, or too large to be sent."""
    try:
        payload = workflow.payload_converter().to_payload(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DefinitionFault(f"{what} cannot be written as JSON: {error}") from None
    size = len(payload.data)
    if size > PAYLOAD_LIMIT:
        raise DefinitionFault(f"{what} has {size:,} bytes; Temporal takes {PAYLOAD_LIMIT:,}")
    return payload


def _fitting(output: Any) -> Any:
    """The output, unless it is too large to be the result of a workflow: then only its size."""
    size = len(json.dumps(output, default=str).encode())
    return output if size <= PAYLOAD_LIMIT else {"omitted": "size", "bytes": size}


def _short(text: str) -> str:
    """One line of the Web UI, within what Temporal takes."""
    if len(text) <= SUMMARY_LIMIT and len(text.encode()) <= 2 * SUMMARY_LIMIT - 8:
        return text
    short = text[: SUMMARY_LIMIT - 1]
    while len(short.encode()) > 2 * SUMMARY_LIMIT - 16:
        short = short[:-1]
    return short + "…"


def _refused(sentence: str) -> Sentence:
    return Sentence(sentence, type="SagaRefused", non_retryable=True, category=ApplicationErrorCategory.BENIGN)


def _failed(error: FailureError) -> Outcome:
    """What the end of an activity says about its last attempt. A local activity's failure comes bare."""
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, ApplicationError):
        return decode_failure(cause.type, cause.message, cause.details[0] if cause.details else None)
    if isinstance(cause, TimeoutError):
        kind = cause.type.name.lower().replace("_", "-") if cause.type is not None else "time-out"
        return Outcome("unknown", failure=Failure("Timeout", f"no answer in time ({kind})"))
    if isinstance(cause, CancelledError):
        return Outcome("unknown", failure=Failure("Cancelled", "the attempt was cancelled"))
    return Outcome("unknown", failure=Failure(type(cause).__name__, str(cause or error)))


def _child_end(error: ChildWorkflowError) -> tuple[str, Mapping[str, Any] | None]:
    """How a nested saga that did not complete ended, from its own closing failure."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        story = cause.details[0] if cause.details and isinstance(cause.details[0], dict) else None
        if cause.type == "SagaCompensated":
            return "COMPENSATED", story
        if cause.type == "SagaResidue":
            return "RESIDUE", story
        if cause.type == "SagaRefused":
            failure = {"kind": "rejected", "type": "SagaRefused", "message": cause.message, "details": {}}
            return "COMPENSATED", {"state": "COMPENSATED", "reason": failure}
    if isinstance(cause, CancelledError):
        # Only a native cancel of the child itself closes it so, and only after it was undone.
        return "COMPENSATED", {"state": "COMPENSATED", "reason": {"kind": "cancelled", "message": str(cause)}}
    return "TERMINATED", None


def _decision(data: Mapping[str, Any]) -> DecisionMade:
    return DecisionMade(
        step=data["step"],
        decision=data["decision"],
        reason=data["reason"],
        who=data.get("who") or "unknown",
        at=workflow.time(),
        arguments=data.get("with"),
        definition=data.get("definition"),
        result=data.get("result"),
        evidence=data.get("evidence"),
    )


def _last_sentence(finish: Finish, reason: Mapping[str, Any]) -> str:
    what = "undone" if finish.state == "COMPENSATED" else "closed with effects left"
    where = f" at {reason['step']}" if reason.get("step") else ""
    return f"{what}: {reason.get('kind', 'unknown')}{where}: {reason.get('message') or 'no message'}"
