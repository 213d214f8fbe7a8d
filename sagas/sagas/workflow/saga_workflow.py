"""The Temporal workflow of every saga: executes the machine's commands, and turns messages into its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import CancelledError

from sagas.builtins.callbacks import CALLBACK_UPDATE
from sagas.expressions.limits import WorkMeter
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.machine import Machine
from sagas.machine.view import blank_view, shrink_view
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
    LocksChanged,
    MachineEvent,
    Notify,
    RecordState,
    ReleaseLocks,
    ReportParked,
    Started,
    StartSaga,
    StartTimer,
    TimerFired,
    UndoSaga,
)
from sagas.protocol.nested_result import result_for_parent
from sagas.protocol.payloads import (
    CANCEL_SIGNAL,
    LOCKS_SIGNAL,
    MACHINE_QUERY,
    OUTCOME_MEMO,
    OUTCOME_SIGNATURE_MEMO,
    PARKED_SIGNAL,
    RELEASE_ACTIVITY,
    STARTED_AT_MEMO,
    UNDO_SUFFIX,
    VIEW_QUERY,
)
from sagas.protocol.saga_view import SagaView
from sagas.protocol.signed_content import outcome_message
from sagas.workflow.activity_calls import ActivityCalls
from sagas.workflow.client_messages import (
    cancel_event,
    check_request,
    is_signed_decision,
    request_fields,
    to_decision_event,
    to_signal_event,
)
from sagas.workflow.failures import closing_error, refused_error
from sagas.workflow.json_payloads import ENVELOPE_VALUES, NO_INPUT, UnreadableValue, bounded_value, raw_json
from sagas.workflow.limits import HISTORY_LIMIT, NEXT_TASK, VIEW_LIMIT, PayloadThrottle, limit_output, view_payload
from sagas.workflow.lock_calls import LockCalls, release_refusal
from sagas.workflow.nested import NestedSagas
from sagas.workflow.notify import Notifications
from sagas.workflow.operator_pause import BEGINS, OperatorPause, not_paused_text
from sagas.workflow.parent_cancels import ParentCancels
from sagas.workflow.parked_reports import ParkedReports
from sagas.workflow.run_reset import RunReset
from sagas.workflow.run_start import continuation_input, start_run, state_message
from sagas.workflow.run_trust import RunTrust, is_proven_decision, is_trusted, signed_message, trusts_decision
from sagas.workflow.search_attributes import RunSearchAttributes
from sagas.workflow.summaries import limit_summary
from sagas.workflow.task_set import CommandContext, TaskSet


@workflow.defn(dynamic=True)
class SagaWorkflow:
    """Runs any saga."""

    def __init__(self) -> None:
        self.trust: RunTrust | None = None
        """Set by the worker before the run; without it only replays and starts without a definition are accepted."""
        self.state_observer: Callable[[str], None] | None = None
        """Set by the worker: called with every state that is recorded for search, also in a replay."""
        self.final_document: Mapping[str, Any] | None = None
        """The final view as JSON; None while the saga runs, and if it was refused."""
        self._machine: Machine | None = None
        self._early_events: list[MachineEvent] = []
        self._tasks = TaskSet()
        self._pause = OperatorPause()
        context = CommandContext(self._tasks, PayloadThrottle(), self._pause, self._feed)
        self._activity_calls = ActivityCalls(context)
        self._nested_sagas = NestedSagas(context)
        self._reports = ParkedReports(self._tasks)
        self._cancels = ParentCancels()
        self._notifications = Notifications(context)
        self._locks = LockCalls(context)
        self._search_attributes = RunSearchAttributes()
        self._finish: Finish | None = None
        self._started = False
        self._native_cancel = False
        self._continuing = False
        self._must_stay = False
        self._decisions = 0
        self._task = -1
        self._reset = RunReset(self._tasks, self._go_on_after_reset)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Any:
        self._reset.begin(self.trust)
        first = await self._start_shielded(args)
        # Events that arrived before the start: the machine receives the start event first.
        self._early_events.insert(0, first)
        self._apply_early_events()
        while self._finish is None:
            await self._wait(lambda: self._finish is not None or self._must_act)
            if self._reset.is_new:
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
            opened = await start_run(bounded_value(args), self.trust)
        except UnreadableValue as error:
            raise refused_error(f"the input cannot be read: {error}") from None
        self._search_attributes = RunSearchAttributes(opened.attributes, recorded=opened.state_recorded)
        self._pause.state = opened.paused
        self._activity_calls.callbacks.restore(opened.callbacks)
        self._native_cancel = self._native_cancel or opened.native_cancel
        self._machine = machine = opened.machine
        self._activity_calls.origin.begin(machine)
        machine.begin_task(WorkMeter())
        match opened.kind:
            case "begins":
                if opened.repeats:
                    self._reset.ask()
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
                    if isinstance(command, StartTimer | CancelSaga):
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
            workflow.continue_as_new(raw_json(handed), memo={STARTED_AT_MEMO: machine.started_at})
        self._continuing = False
        self._pause.forget()
        self._activity_calls.callbacks.stay()
        for command in machine.reissue(workflow.time()):
            if isinstance(command, CancelCall | CancelSaga | BEGINS):
                self._execute(command)

    @property
    def _must_act(self) -> bool:
        return self._reset.is_new or self._may_continue

    def _go_on_after_reset(self, learned: Sequence[MachineEvent], began_at: float | None) -> None:
        """Let the machine learn it, before its start if it begins now. A saga that had been undone goes backward."""
        if began_at is not None and not self._started and workflow.info().parent is not None:
            self._early_events[0] = Started(workflow.time(), began_at)
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
        if self._continuing or self._must_stay or not workflow.info().is_continue_as_new_suggested():
            return False
        return not machine.child_running and not self._closes_canceled

    @property
    def _may_continue(self) -> bool:
        machine = self._machine
        may = self._continuing and self._finish is None and workflow.all_handlers_finished()
        return may and machine is not None and not machine.paused and not self._tasks.busy

    @property
    def _sends_last_commands(self) -> bool:
        """The run must not close before others have what it gives them: notifications, and its locks."""
        return self._notifications.is_starting or self._locks.is_releasing

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
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task = task
            machine.begin_task(WorkMeter())
        for command in machine.next(event):
            self._execute(command)

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

    # --- messages ----------------------------------------------------------------------------------------------

    @workflow.signal(name=CANCEL_SIGNAL, description="The parent saga is rolled back, and this one with it.")
    def cancelled_by_parent(self, request: RawValue = NO_INPUT) -> None:
        if (event := self._cancels.receive(request)) is not None:
            self._feed(event)

    @workflow.signal(name=PARKED_SIGNAL, description="A step of a nested saga waits for an operator.")
    def child_parked(self, report: RawValue = NO_INPUT) -> None:
        if (event := self._reports.receive(report)) is not None:
            self._feed(event)

    @workflow.signal(name=LOCKS_SIGNAL, description="Another saga has released locks: ask for those of this one.")
    def locks_changed(self) -> None:
        self._feed(LocksChanged(at=workflow.time()))

    @workflow.signal(dynamic=True, description="Completes the `wait` step of that name.")
    def receive_signal(self, name: str, args: Sequence[RawValue]) -> None:
        try:
            data = bounded_value(args, max_values=MAX_RESULT_VALUES, around=ENVELOPE_VALUES)
            event = to_signal_event(name, data)
        except UnreadableValue as error:
            workflow.logger.warning("signal ignored, its data cannot be read: %s", error)
            return
        self._feed(event)

    @workflow.query(name=VIEW_QUERY, description="The view of this saga, as `saga show` prints it.")
    def view(self) -> RawValue:
        return raw_json(self.document())

    def document(self) -> dict[str, Any]:
        """The view of this saga as JSON."""
        if self._machine is None:
            return blank_view(workflow.info().workflow_id, workflow.info().workflow_type).to_json()
        return shrink_view(self._shown(self._machine), VIEW_LIMIT).to_json()

    def _shown(self, machine: Machine) -> SagaView:
        return self._activity_calls.callbacks.shown_in(self._pause.shown_in(machine.view()))

    @workflow.query(name=MACHINE_QUERY, description="The machine's state; `saga undo` starts from it.")
    def machine_state(self, nonce: str = "") -> RawValue:
        if self._machine is None:
            return raw_json(None)
        return state_message(workflow.info().workflow_id, self._machine, nonce)

    async def _begun(self) -> Machine:
        """The machine, once the saga has started."""
        await workflow.wait_condition(lambda: self._started and not self._reset.is_open)
        assert self._machine is not None
        return self._machine

    @workflow.update(name="cancel", description="Undo what was done, unless the pivot is done.")
    async def cancel(self, request: RawValue = NO_INPUT) -> str:
        response = (await self._begun()).cancel_response()
        if response in ("accepted", "recorded"):
            self._feed(cancel_event(request_fields(request)))
        return response

    @cancel.validator
    def check_cancel(self, request: RawValue = NO_INPUT) -> None:
        check_request(request)

    @workflow.update(name="pause", description="Start no call and no nested saga, in either direction, until `resume`.")
    async def pause(self, request: RawValue = NO_INPUT) -> RawValue:
        self._pause.begin(await self._begun(), request_fields(request))
        return self.view()

    @pause.validator
    def check_pause(self, request: RawValue = NO_INPUT) -> None:
        check_request(request)
        if self._finish is not None:
            raise refused_error("the saga has ended")

    @workflow.update(name="resume", description="Begin what was held back since `pause`, and go on.")
    async def resume(self, request: RawValue = NO_INPUT) -> RawValue:
        for command in self._pause.end(await self._begun(), request_fields(request)):
            self._execute(command)
        return self.view()

    @resume.validator
    def check_resume(self, request: RawValue = NO_INPUT) -> None:
        check_request(request)
        if self._started and self._pause.state is None:
            raise refused_error(not_paused_text(self._machine))

    @workflow.update(name=CALLBACK_UPDATE, description="A participant answers a request that it has accepted.")
    async def callback(self, request: RawValue = NO_INPUT) -> str:
        receipt = await self._activity_calls.callbacks.receive(self.trust, request_fields(request))
        self._feed(TimerFired(id="callback", at=workflow.time()))  # callbacks alone can make the history long
        return receipt

    @callback.validator
    def check_callback(self, request: RawValue = NO_INPUT) -> None:
        self._activity_calls.callbacks.check(self.trust, check_request(request), ended=self._finish is not None)

    @workflow.update(name="resolve", description="Decide about a stuck step: retry, done, skip or compensate.")
    async def resolve(self, decision: RawValue = NO_INPUT) -> RawValue:
        request = request_fields(decision)
        self._decisions += 1
        event = to_decision_event(request, proven=is_proven_decision(self.trust, request, self._decisions))
        if event.step == RELEASE_ACTIVITY and self._machine is not None:
            self._machine.note_release_left(event)
            self._locks.leave()
        else:
            self._feed(event)
        return self.view()

    @resolve.validator
    def check_decision(self, decision: RawValue = NO_INPUT) -> None:
        request = check_request(decision)
        if self._machine is None or not self._started:
            raise refused_error("the saga has not started yet; try again")
        try:
            event = to_decision_event(request)
        except (KeyError, TypeError, AttributeError) as error:
            raise refused_error(f"a decision needs step, decision, reason and who: {error}") from None
        if event.step == RELEASE_ACTIVITY:
            refusal = release_refusal(event, releasing=self._locks.is_releasing)
        else:
            refusal = self._machine.check_decision(event)
        if refusal is not None:
            raise refused_error(refusal)
        # A validator is not called in a replay, so what was accepted stays accepted.
        if is_signed_decision(event) and not is_trusted(self.trust, lambda trust: trusts_decision(trust, request)):
            raise refused_error(
                "new arguments and definitions must be signed with the key of the project, for this run and this one "
                "decision; use saga resolve in the project's folder"
            )

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
        signed = signed_message("outcome", [info.workflow_id, info.run_id], outcome_message(kept.data))
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
