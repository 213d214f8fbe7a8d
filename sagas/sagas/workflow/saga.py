"""The Temporal workflow of every saga: it carries out what the machine asks and decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import CancelledError

from sagas.details import details_table
from sagas.machine.arguments import DefinitionFault
from sagas.machine.commands import (
    Call,
    CancelCall,
    CancelSaga,
    CancelTimer,
    Command,
    Finish,
    Notify,
    Record,
    ReportParked,
    StartSaga,
    StartTimer,
    UndoSaga,
)
from sagas.machine.events import CancelRequested, Event, TimerFired
from sagas.machine.machine import Machine
from sagas.machine.story import blank, shrink
from sagas.wire import CANCEL_SIGNAL, PARKED_SIGNAL, RESIDUE_SIGNAL, STARTED_MEMO, UNDO_SUFFIX, pack_state
from sagas.workflow import messages
from sagas.workflow.attempts import Attempts
from sagas.workflow.failures import closed_without, refused
from sagas.workflow.limits import HISTORY_ROOM, STORY_LIMIT, Pace, fitting, one_line, story_payload
from sagas.workflow.nested import REPORTS_PARKED, Children, ParkedReports, parked_report, tell_parent
from sagas.workflow.notify import Notices
from sagas.workflow.opening import handed_on, open_run
from sagas.workflow.visibility import Visibility
from sagas.workflow.work import Work


@workflow.defn(dynamic=True)
class SagaWorkflow:
    """Runs any saga."""

    def __init__(self) -> None:
        pace = Pace()
        self._machine: Machine | None = None
        self._early: list[Event] = []
        self._work = Work()
        self._attempts = Attempts(self._work, pace, self._feed)
        self._children = Children(self._work, pace, self._feed)
        self._reports = ParkedReports(self._work)
        self._notices = Notices(self._work, pace)
        self._visibility = Visibility()
        self._finish: Finish | None = None
        self._begun = False
        self._native_cancel = False
        self._continuing = False
        self._rooted = False

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Any:
        first = await self._opened(args)
        self._take(first)
        while self._early:
            # What came before the start: the machine hears of the start first.
            self._take(self._early.pop(0))
        while self._finish is None:
            await self._rest(lambda: self._finish is not None or self._work.crash is not None or self._may_continue)
            if self._work.crash is not None:
                raise self._work.crash
            if self._finish is None:
                await self._rest(workflow.all_handlers_finished)
                if self._may_continue:
                    self._continue()
        await self._rest(workflow.all_handlers_finished)
        await self._rest(lambda: not self._notices.beginning or self._work.crash is not None)
        if self._work.crash is not None:
            raise self._work.crash
        await self._tell_parent(self._finish)
        return self._close(self._finish)

    # --- the beginning, and the move to a new run ---------------------------------------------------------------

    async def _opened(self, args: Sequence[RawValue]) -> Event:
        task = asyncio.create_task(self._open(args))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                self._cancelled()
        return task.result()

    async def _open(self, args: Sequence[RawValue]) -> Event:
        opened = await open_run(messages.first_value(args))
        self._visibility = Visibility(opened.attributes, recorded=opened.recorded)
        self._native_cancel = self._native_cancel or opened.native_cancel
        self._machine = machine = opened.machine
        match opened.kind:
            case "begins":
                try:
                    self._visibility.label(machine)
                except DefinitionFault as error:
                    raise refused(str(error)) from None
            case "undoes":
                if not machine.can_undo:
                    raise refused(f"{workflow.info().workflow_id.removesuffix(UNDO_SUFFIX)} cannot be undone")
            case "takes up":
                if machine.started_at is None or machine.child_running:
                    raise refused("only a person can take up a terminated run that had a nested saga under way")
                for command in machine.outstanding(workflow.time()):
                    if isinstance(command, StartTimer):
                        self._execute(command)
                self._early[:0] = machine.lost(workflow.time())
            case "continues":
                for command in machine.outstanding(workflow.time()):
                    self._execute(command)
        return opened.event

    def _continue(self) -> None:
        """Move the whole machine to a new run, unless this one has to go on."""
        machine = self._machine
        assert machine is not None
        recorded = self._visibility.recorded
        handed = handed_on(machine, self._visibility.known, native_cancel=self._native_cancel, recorded=recorded)
        if handed is None:
            self._rooted = True
        elif not self._closes_canceled:
            workflow.continue_as_new(handed, memo={STARTED_MEMO: machine.started_at})
        self._continuing = False
        for command in machine.outstanding(workflow.time()):
            if isinstance(command, Call | CancelCall | StartSaga | UndoSaga):
                self._execute(command)

    def _should_continue(self, machine: Machine) -> bool:
        """The history is long. A nested saga reports to this very run, and may take days: not while one runs."""
        if self._continuing or self._rooted or not workflow.info().is_continue_as_new_suggested():
            return False
        return not machine.child_running and not self._closes_canceled

    @property
    def _may_continue(self) -> bool:
        return self._continuing and self._machine is not None and not self._work.busy

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

    def _execute(self, command: Command) -> None:
        if self._continuing and isinstance(command, Call | StartSaga | UndoSaga):
            return  # it stays open in the machine, and is asked again by the next run
        match command:
            case Call():
                self._attempts.start(command)
            case CancelCall():
                self._attempts.cancel(command.id)
            case StartTimer():
                self._work.spawn(f"timer {command.id}", self._timer(command))
            case CancelTimer():
                self._work.cancel(f"timer {command.id}")
            case StartSaga():
                self._children.start(command)
            case CancelSaga():
                self._children.cancel(command)
            case UndoSaga():
                self._children.undo(command)
            case ReportParked():
                self._reports.send(command)
            case Record():
                self._visibility.record(command)
            case Notify():
                self._notices.send(command)
            case Finish():
                self._finish = command

    async def _timer(self, timer: StartTimer) -> None:
        await workflow.sleep(timedelta(seconds=timer.seconds), summary=one_line(timer.summary or timer.id))
        self._work.done(f"timer {timer.id}")
        self._feed(TimerFired(id=timer.id, at=workflow.time()))

    async def _rest(self, condition: Callable[[], bool]) -> None:
        """Wait; a native cancel on the way is one more event and interrupts nothing."""
        while not condition():
            try:
                await workflow.wait_condition(condition)
            except asyncio.CancelledError:
                self._cancelled()

    def _cancelled(self) -> None:
        """Temporal's own cancel: one more event. The run closes Canceled if this cancel is what leads backward."""
        machine = self._machine
        if not self._begun or (machine is not None and machine.cancel_answer() in ("accepted", "recorded")):
            self._native_cancel = True
        self._feed(CancelRequested(at=workflow.time(), message=workflow.cancellation_reason() or ""))

    # --- messages ----------------------------------------------------------------------------------------------

    @workflow.signal(name=CANCEL_SIGNAL, description="The parent saga goes backward, and takes this one with it.")
    def cancelled_by_parent(self, message: str = "") -> None:
        self._feed(CancelRequested(at=workflow.time(), kind="parent", message=message))

    @workflow.signal(name=RESIDUE_SIGNAL, description="A nested saga of this one has left a residue.")
    def child_left_residue(self, story: dict[str, Any]) -> None:
        self._children.left_residue(story)

    @workflow.signal(name=PARKED_SIGNAL, description="Something in a nested saga of this one waits for a person.")
    def child_parked(self, told: dict[str, Any]) -> None:
        if workflow.patched(REPORTS_PARKED):  # a worker without it may have taken the signal as one of a `wait`
            self._feed(parked_report(told))

    @workflow.signal(dynamic=True, description="Answers a `wait` step of that name.")
    def signalled(self, name: str, args: Sequence[RawValue]) -> None:
        self._feed(messages.signal(name, messages.first_value(args)))

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
        self._feed(messages.decision(decision))
        return self.story()

    @resolve.validator
    def check_decision(self, decision: dict[str, Any]) -> None:
        if self._machine is None or not self._begun:
            raise refused("the saga has not begun yet; try again")
        try:
            event = messages.decision(decision)
        except (KeyError, TypeError, AttributeError) as error:
            raise refused(f"a decision needs step, decision, reason and who: {error}") from None
        refusal = self._machine.check_decision(event)
        if refusal is not None:
            raise refused(refusal)

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

    async def _tell_parent(self, finish: Finish) -> None:
        parent = workflow.info().parent
        if parent is None or finish.state != "RESIDUE" or not finish.committed:
            return
        task = asyncio.create_task(tell_parent(parent, self.story()))
        await self._rest(task.done)
        task.result()

    def _close(self, finish: Finish) -> Any:
        assert self._machine is not None
        story, kept = story_payload(self._machine.story(workflow.time()))
        workflow.upsert_memo({"saga": RawValue(kept)})
        if finish.state == "COMPLETED" and self._visibility.recorded:
            # On the plain path the close status says it; here an earlier state would go on saying something else.
            self._visibility.record(Record("COMPLETED"))
        if finish.state == "COMPLETED" or (finish.state == "RESIDUE" and finish.committed):
            return fitting(finish.output)
        undone = workflow.info().workflow_id.endswith(UNDO_SUFFIX)
        if undone and finish.state == "COMPENSATED":
            return fitting(finish.output)
        cancelled = self._native_cancel and workflow.cancellation_reason() is not None
        if finish.state == "COMPENSATED" and cancelled and (finish.reason or {}).get("kind") == "cancelled":
            raise CancelledError("cancelled, and everything done was undone")
        raise closed_without(finish, story)
