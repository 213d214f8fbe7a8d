"""The Temporal workflow of every saga: passes events to the machine, and executes its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import CancelledError

from sagas.expressions.limits import WorkMeter
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.machine import Machine
from sagas.presentation.web_ui_text import current_details
from sagas.protocol.messages import (
    AcquireLocks,
    Call,
    CancelCall,
    CancelRequested,
    CancelSaga,
    CancelTimer,
    Command,
    Finish,
    MachineEvent,
    Notify,
    RecordState,
    Redeliver,
    ReleaseLocks,
    ReportParked,
    RollBackSaga,
    Started,
    StartSaga,
    StartTimer,
    TimerFired,
    UndoSaga,
)
from sagas.protocol.nested_result import result_for_parent
from sagas.protocol.payloads import (
    EVENT_MEMO,
    OUTCOME_MEMO,
    OUTCOME_SIGNATURE_MEMO,
    STARTED_AT_MEMO,
    UNDO_SUFFIX,
)
from sagas.protocol.signed_content import view_message
from sagas.workflow import history_drain
from sagas.workflow.activity_calls import ActivityCalls
from sagas.workflow.awaited_replies import ReplyObserver
from sagas.workflow.failures import SagaApplicationError, closing_error, refused_error
from sagas.workflow.history_drain import HistoryDrain
from sagas.workflow.json_payloads import UnreadableValue, raw_json
from sagas.workflow.limits import HISTORY_LIMIT, NEXT_TASK, PayloadThrottle, limit_output, view_payload
from sagas.workflow.lock_calls import ACQUIRING, LockCalls
from sagas.workflow.nested import NestedSagas
from sagas.workflow.notify import Notifications
from sagas.workflow.operator_pause import BEGINS, OperatorPause
from sagas.workflow.parked_reports import ParkedReports
from sagas.workflow.redelivery import Redeliveries
from sagas.workflow.run_reset import RunReset
from sagas.workflow.run_start import continuation_input, start_run
from sagas.workflow.run_trust import signed_message
from sagas.workflow.saga_messages import SagaMessages
from sagas.workflow.search_attributes import RunSearchAttributes
from sagas.workflow.summaries import limit_summary
from sagas.workflow.task_set import CommandContext, TaskSet

_DRAIN = "timer continue as new"
"""The name of the task that limits the wait for what is in flight."""


@workflow.defn(dynamic=True)
class SagaWorkflow(SagaMessages):
    """Runs any saga."""

    def __init__(self) -> None:
        super().__init__()
        self.trust = None
        self.state_observer: Callable[[str], None] | None = None
        """Set by the worker: called with every state that is recorded for search, also in a replay."""
        self.final_document: Mapping[str, Any] | None = None
        """The final view as JSON; None while the saga runs, and if it was refused."""
        self._machine = None
        self._early_events: list[MachineEvent] = []
        self._tasks = TaskSet()
        self._pause = OperatorPause()
        context = CommandContext(self._tasks, PayloadThrottle(), self._pause, self._feed)
        self._activity_calls = ActivityCalls(context)
        self._nested_sagas = NestedSagas(context)
        self._reports = ParkedReports(self._tasks)
        self._notifications = Notifications(context)
        self._redeliveries = Redeliveries(context)
        self._locks = LockCalls(context)
        self._search_attributes = RunSearchAttributes()
        self._finish = None
        self._started = False
        self._native_cancel = False
        self._continuing = False
        self._must_stay = False
        self._drain = HistoryDrain()
        self._task = -1
        self._reset = RunReset(self._tasks, self._go_on_after_reset)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Any:
        self._reset.begin(self.trust)
        try:
            first = await self._start_shielded(args)
        except SagaApplicationError as error:
            await self._refuse(error.message)
            raise
        # Events that arrived before the start: the machine receives the start event first.
        self._early_events.insert(0, first)
        self._apply_early_events()
        while self._finish is None:
            await self._wait(lambda: self._finish is not None or self._must_act)
            if self._reset.refusal:
                await self._refuse(self._reset.refusal)
                raise refused_error(self._reset.refusal)
            elif self._reset.is_new:
                self._reset.look_up(self._machine)
            elif self._finish is None:
                await self._wait(workflow.all_handlers_finished)
                if self._may_continue:
                    await self._next_task()
                if self._may_continue:
                    self._continue()
        await self._wait(workflow.all_handlers_finished)
        await self._wait(lambda: not self._sends_last_commands)
        return self._close(self._finish)

    async def _refuse(self, reason: str) -> None:
        """Give this answer to all who wait for one, before the run ends."""
        self._refusal = reason
        await self._wait(workflow.all_handlers_finished)

    # --- start and continue-as-new ------------------------------------------------------------------------------

    async def _start_shielded(self, args: Sequence[RawValue]) -> MachineEvent:
        task = asyncio.create_task(self._start_machine(args))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                self._cancel_natively()
        return task.result()

    async def _start_machine(self, args: Sequence[RawValue]) -> MachineEvent:
        try:
            opened = await start_run(args, self.trust)
        except UnreadableValue as error:
            raise refused_error(f"the input cannot be read: {error}") from None
        self._search_attributes = RunSearchAttributes(opened.attributes, recorded=opened.state_recorded)
        self._pause.state = opened.paused
        self._activity_calls.callbacks.restore(opened.callbacks)
        self._native_cancel = self._native_cancel or opened.native_cancel
        self._machine = machine = opened.machine
        self._activity_calls.origin.begin(machine)
        self._nested_sagas.begin(machine)
        machine.begin_task(WorkMeter())
        match opened.kind:
            case "begins":
                if opened.repeats:
                    self._reset.ask(cancelled=opened.cancelled)
                try:
                    self._search_attributes.set_labels(machine)
                except DefinitionError as error:
                    raise refused_error(str(error)) from None
            case "undoes":
                if (why := machine.undo_refusal) is not None:
                    saga_id = workflow.info().workflow_id.removesuffix(UNDO_SUFFIX)
                    raise refused_error(f"{saga_id} cannot be undone: {why}")
            case "takes up":
                if machine.started_at is None:
                    raise refused_error("the terminated run had not begun, so there is nothing to undo")
                for command in machine.reissue(workflow.time()):
                    if isinstance(command, StartTimer | CancelSaga | RollBackSaga):
                        self._execute(command)
                    elif isinstance(command, StartSaga | UndoSaga):
                        self._nested_sagas.take_up(command)
                self._early_events[:0] = machine.lost_calls(workflow.time())
            case "continues" | "detached":
                for command in machine.reissue(workflow.time()):
                    self._execute(command)
                if opened.kind == "detached" and machine.state != "RUNNING":
                    self._execute(RecordState(machine.state))
        return opened.event

    def _continue(self) -> None:
        """Continue as new with the whole machine, unless this run has to go on."""
        machine = self._machine
        assert machine is not None
        handed = continuation_input(
            machine,
            self._search_attributes.registered,
            native_cancel=self._native_cancel,
            recorded=self._search_attributes.state_recorded,
            paused=self._pause.state,
            callbacks=self._activity_calls.callbacks.to_json(),
        )
        if handed is None:
            self._must_stay = True
        elif not self._closes_canceled:
            workflow.continue_as_new(raw_json(handed), memo=_continued_memo(machine.started_at))
        self._go_on(machine)

    def _go_on(self, machine: Machine) -> None:
        """Continue in this run: start what was held back."""
        self._continuing = False
        self._tasks.cancel(_DRAIN)
        self._pause.forget()
        self._activity_calls.callbacks.stay()
        running = self._tasks.names
        for command in machine.reissue(workflow.time()):
            name = ACQUIRING if isinstance(command, AcquireLocks) else getattr(command, "id", "")
            if isinstance(command, CancelCall | CancelSaga | BEGINS) and name not in running:
                self._execute(command)

    async def _limit_drain(self) -> None:
        """Let others start again if something in flight takes long, unless the history has no room left."""
        await workflow.sleep(history_drain.MAX_DRAIN, summary="continue as new, once nothing is in flight")
        self._tasks.discard(_DRAIN)
        machine = self._machine
        if machine is not None and self._continuing and self._finish is None and not self._drain.is_urgent:
            self._drain.give_up()
            self._go_on(machine)

    @property
    def _must_act(self) -> bool:
        return bool(self._reset.refusal) or self._reset.is_new or self._may_continue

    def _go_on_after_reset(self, learned: Sequence[MachineEvent], began_at: float | None) -> None:
        """Let the machine learn it, before its start if it begins now. A saga that had been undone goes backward."""
        is_nested = workflow.info().parent is not None
        if began_at is not None and is_nested and not self._started and isinstance(self._early_events[0], Started):
            self._early_events[0] = Started(workflow.time(), began_at)
        self._nested_sagas.take_up_started()
        self._early_events[:0] = learned
        self._apply_early_events()

    def _apply_early_events(self) -> None:
        while self._early_events and not self._reset.is_open:
            self._apply(self._early_events.pop(0))

    async def _next_task(self) -> None:
        """Wait for the next workflow task: the SDK applies a native cancel after the messages of the same task, and it
        would be lost with this run.
        """
        timer = asyncio.ensure_future(workflow.sleep(NEXT_TASK, summary="continue as new"))
        await self._wait(timer.done)

    def _should_continue(self, machine: Machine) -> bool:
        """True when the history is long, unless a nested saga is running: it reports to this run and may take days."""
        if self._continuing or self._must_stay or not self._drain.is_due:
            return False
        return not machine.child_running and not self._closes_canceled

    @property
    def _may_continue(self) -> bool:
        machine = self._machine
        if machine is None or machine.paused or self._finish is not None:
            return False
        return self._continuing and not self._tasks.busy and workflow.all_handlers_finished()

    @property
    def _sends_last_commands(self) -> bool:
        """The run must not close before others have what it gives them: notifications, its next start, its locks."""
        return self._notifications.is_starting or self._redeliveries.is_starting or self._locks.is_releasing

    @property
    def _closes_canceled(self) -> bool:
        """True if the run can close as Canceled: the run that Temporal cancelled, while its history has room."""
        return self._native_cancel and workflow.info().get_current_history_length() < HISTORY_LIMIT

    # --- events in, commands out -------------------------------------------------------------------------------

    def _feed(self, event: MachineEvent) -> None:
        if not self._started or self._reset.is_open:
            self._early_events.append(event)
        else:
            self._apply(event)

    def _apply(self, event: MachineEvent) -> None:
        machine = self._machine
        assert machine is not None
        self._started = True
        if self._finish is not None:
            return
        if self._should_continue(machine):
            # From now on nothing starts; once everything in flight has ended, the run continues as new.
            self._continuing = True
            self._activity_calls.callbacks.hand_on()
            if not self._drain.is_urgent:
                self._tasks.start(_DRAIN, self._limit_drain())
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task = task
            machine.begin_task(WorkMeter())
        for command in machine.next(event):
            self._execute(command)
        held_by = self._pause.view() or machine.standing_pause()
        self._search_attributes.record_pause(None if self._finish is not None else held_by)

    def _execute(self, command: Command) -> None:
        if self._continuing and isinstance(command, BEGINS):
            return  # it stays in flight in the machine, and the next run reissues it
        if self._pause.holds(command):
            return
        match command:
            case Call():
                self._activity_calls.start(command)
            case CancelCall():
                self._activity_calls.cancel(command.id)
            case StartTimer():
                self._tasks.start(f"timer {command.id}", self._timer(command))
            case CancelTimer():
                self._tasks.cancel(f"timer {command.id}")
            case StartSaga():
                self._nested_sagas.start(command)
            case CancelSaga():
                self._nested_sagas.cancel(command)
            case RollBackSaga():
                self._nested_sagas.roll_back(command)
            case UndoSaga():
                self._nested_sagas.undo(command)
            case ReportParked():
                self._reports.send(command)
            case RecordState():
                self._search_attributes.record_state(command)
                if self.state_observer is not None:
                    self.state_observer(command.state)
            case Notify():
                self._notifications.send(command)
            case Redeliver():
                self._redeliveries.send(command)
            case AcquireLocks():
                self._locks.acquire(command)
            case ReleaseLocks():
                self._locks.release(command)
            case Finish():
                self._finish = command

    async def _timer(self, timer: StartTimer) -> None:
        await workflow.sleep(timedelta(seconds=timer.seconds), summary=limit_summary(timer.summary or timer.id))
        self._tasks.discard(f"timer {timer.id}")
        self._feed(TimerFired(id=timer.id, at=workflow.time()))

    async def _wait(self, condition: Callable[[], bool]) -> None:
        await self._tasks.wait(condition, self._cancel_natively)

    def _cancel_natively(self) -> None:
        """Turn Temporal's own cancel into an event. The run closes as Canceled if this cancel causes the rollback."""
        machine = self._machine
        if not self._started or (machine is not None and machine.cancel_response() in ("accepted", "recorded")):
            self._native_cancel = True
        self._feed(CancelRequested(at=workflow.time(), message=workflow.cancellation_reason() or ""))

    # --- details and completion --------------------------------------------------------------------------------

    def details(self) -> str:
        """The "current details" of the Web UI, rendered on request only."""
        if self._machine is None:
            return ""
        return current_details(self._shown(self._machine))

    @property
    def machine(self) -> Machine | None:
        """The machine of the saga; None before the start."""
        return self._machine

    def observe_replies(self, observer: ReplyObserver) -> None:
        """Let the worker see the calls that wait for a reply or a callback."""
        self._activity_calls.reply_observer = observer

    @property
    def ended(self) -> Finish | None:
        """The end of the saga, for metrics and traces; None while it runs."""
        return self._finish

    @property
    def started_at(self) -> float | None:
        """Start time of the saga in the first run of its chain, in seconds since the epoch; None before it."""
        return self._machine.started_at if self._machine is not None else None

    def _close(self, finish: Finish) -> Any:
        assert self._machine is not None
        document, kept = view_payload(self._machine.view())
        info = workflow.info()
        signed = signed_message("outcome", [info.workflow_id, info.run_id], view_message(kept.data))
        workflow.upsert_memo({OUTCOME_MEMO: RawValue(kept), OUTCOME_SIGNATURE_MEMO: signed.get("signature")})
        self.final_document = document
        if finish.state == "COMPLETED" and self._search_attributes.state_recorded:
            # Usually the close status is enough; here an earlier recorded state would be out of date.
            self._search_attributes.record_state(RecordState("COMPLETED"))
        if finish.state == "COMPLETED" or (finish.state == "RESIDUE" and finish.committed):
            if workflow.info().parent is None:
                return limit_output(finish.output)
            return limit_output(finish.output, lambda output: result_for_parent(output, finish, document))
        if workflow.info().workflow_id.endswith(UNDO_SUFFIX) and finish.state == "COMPENSATED":
            return limit_output(finish.output)
        cancelled = self._native_cancel and workflow.cancellation_reason() is not None
        if finish.state == "COMPENSATED" and cancelled and (finish.reason or {}).get("kind") == "cancelled":
            raise CancelledError("cancelled, and everything done was undone")
        raise closing_error(finish, document)


def _continued_memo(started_at: float | None) -> dict[str, Any]:
    """The memo of the run that continues this one. Temporal hands on nothing of the memo to a run that is given one."""
    memo: dict[str, Any] = {STARTED_AT_MEMO: started_at}
    if (event := workflow.info().raw_memo.get(EVENT_MEMO)) is not None:
        memo[EVENT_MEMO] = RawValue(event)
    return memo
