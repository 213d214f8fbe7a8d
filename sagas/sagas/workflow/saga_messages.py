"""The messages to the workflow of a saga: its signals, updates and queries. Any client of Temporal may send them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from sagas.builtins.callbacks import CALLBACK_UPDATE
from sagas.builtins.signal_names import CANCEL_SIGNAL, LOCKS_SIGNAL, PARKED_SIGNAL
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.machine.machine import Machine
from sagas.machine.remaining_calls import RemainingCall
from sagas.machine.view import blank_view, shrink_view
from sagas.protocol.messages import (
    Command,
    DecisionMade,
    Finish,
    LocksChanged,
    MachineEvent,
    TimerFired,
)
from sagas.protocol.payloads import (
    MACHINE_QUERY,
    RELEASE_ACTIVITY,
    VIEW_QUERY,
)
from sagas.protocol.saga_view import SagaView
from sagas.workflow.activity_calls import ActivityCalls
from sagas.workflow.client_messages import (
    cancel_event,
    check_request,
    is_signed_decision,
    request_fields,
    to_decision_event,
    to_signal_event,
)
from sagas.workflow.failures import refused_error
from sagas.workflow.json_payloads import ENVELOPE_VALUES, NO_INPUT, UnreadableValue, bounded_value, raw_json
from sagas.workflow.limits import ANSWER_LIMIT, VIEW_LIMIT, full_history_text, history_is_full
from sagas.workflow.lock_calls import LockCalls, release_refusal
from sagas.workflow.operator_pause import OperatorPause, not_paused_text
from sagas.workflow.parent_cancels import ParentCancels
from sagas.workflow.parked_reports import ParkedReports
from sagas.workflow.query_answers import state_answer, view_answer
from sagas.workflow.run_reset import RunReset
from sagas.workflow.run_trust import RunTrust, is_proven_decision, is_trusted, trusts_decision
from sagas.workflow.waits import wait_until


class SagaMessages(ABC):
    """The handlers of the workflow that inherits from it, and what they need of it."""

    trust: RunTrust | None
    """Set by the worker before the run; without it only replays and starts without a definition are accepted."""
    _machine: Machine | None
    _started: bool
    _finish: Finish | None
    _pause: OperatorPause
    _activity_calls: ActivityCalls
    _reports: ParkedReports
    _locks: LockCalls
    _reset: RunReset

    def __init__(self) -> None:
        self._cancels = ParentCancels()
        self._decisions = 0
        self._refusal: str | None = None
        """Why the start is refused; the messages that wait for it are answered with that."""

    @abstractmethod
    def _feed(self, event: MachineEvent) -> None:
        """Pass an event to the machine, now or once the saga has started."""

    @abstractmethod
    def _execute(self, command: Command) -> None:
        """Execute a command of the machine."""

    def count_message(self) -> None:
        """Check whether the run must continue as new. Messages that change nothing also make its history long."""
        if self._started:
            self._feed(TimerFired(id="message", at=workflow.time()))

    def _answer(self) -> RawValue:
        """The view in the answer to an update."""
        assert self._machine is not None
        return raw_json(shrink_view(self._shown(self._machine), ANSWER_LIMIT).to_json())

    @workflow.signal(name=CANCEL_SIGNAL, description="The parent saga is rolled back, and this one with it.")
    def cancelled_by_parent(self, request: RawValue = NO_INPUT) -> None:
        if (event := self._cancels.receive(request)) is not None:
            self._feed(event)
        else:
            self.count_message()

    @workflow.signal(name=PARKED_SIGNAL, description="A step of a nested saga waits for an operator.")
    def child_parked(self, report: RawValue = NO_INPUT) -> None:
        if (event := self._reports.receive(report)) is not None:
            self._feed(event)
        else:
            self.count_message()

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
            self.count_message()
            return
        self._feed(event)

    @workflow.query(name=VIEW_QUERY, description="The view of this saga, as `saga show` prints it.")
    def view(self, nonce: str = "") -> RawValue:
        return view_answer(workflow.info().workflow_id, self.document(), nonce)

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
        return state_answer(workflow.info().workflow_id, self._machine, nonce)

    def remaining_calls(self, *, interrupted: bool = False) -> list[RemainingCall]:
        """The calls of participants that the saga may still make; none before it has begun."""
        return [] if self._machine is None else self._machine.remaining_calls(interrupted=interrupted)

    async def _begun(self) -> Machine:
        """The machine, once the saga has started. Raises SagaApplicationError if its start is refused."""
        await wait_until(lambda: self._refusal is not None or (self._started and not self._reset.is_open))
        if self._refusal is not None:
            raise refused_error(self._refusal)
        assert self._machine is not None
        return self._machine

    def _decision_refusal(self, event: DecisionMade) -> str | None:
        if event.step == RELEASE_ACTIVITY:
            return release_refusal(event, releasing=self._locks.is_releasing)
        assert self._machine is not None
        return self._machine.check_decision(event)

    @workflow.update(name="cancel", description="Undo what was done, unless the pivot is done.")
    async def cancel(self, request: RawValue = NO_INPUT) -> str:
        response = (await self._begun()).cancel_response()
        if response in ("accepted", "recorded"):
            self._feed(cancel_event(request_fields(request)))
        else:
            self.count_message()
        return response

    @cancel.validator
    def check_cancel(self, request: RawValue = NO_INPUT) -> None:
        check_request(request)
        if not self._started or self._machine is None or not history_is_full():
            return
        if (response := self._machine.cancel_response()) not in ("accepted", "recorded"):
            raise refused_error(f"{full_history_text('cancels')}; a cancel would change nothing ({response})")

    @workflow.update(name="pause", description="Start no call and no nested saga, in either direction, until `resume`.")
    async def pause(self, request: RawValue = NO_INPUT) -> RawValue:
        self._pause.begin(await self._begun(), request_fields(request))
        self.count_message()
        return self._answer()

    @pause.validator
    def check_pause(self, request: RawValue = NO_INPUT) -> None:
        check_request(request)
        if self._finish is not None:
            raise refused_error("the saga has ended")
        if self._started and self._machine is not None:
            refusal = full_history_text("pauses") if history_is_full() else self._machine.pause_refusal()
            if refusal is not None:
                raise refused_error(refusal)

    @workflow.update(name="resume", description="Begin what was held back since `pause`, and go on.")
    async def resume(self, request: RawValue = NO_INPUT) -> RawValue:
        for command in self._pause.end(await self._begun(), request_fields(request)):
            self._execute(command)
        self.count_message()
        return self._answer()

    @resume.validator
    def check_resume(self, request: RawValue = NO_INPUT) -> None:
        check_request(request)
        if self._started and self._pause.state is None:
            raise refused_error(not_paused_text(self._machine))

    @workflow.update(name=CALLBACK_UPDATE, description="A participant answers a request that it has accepted.")
    async def callback(self, request: RawValue = NO_INPUT) -> str:
        receipt = await self._activity_calls.callbacks.receive(request_fields(request))
        self.count_message()
        return receipt

    @callback.validator
    def check_callback(self, request: RawValue = NO_INPUT) -> None:
        self._activity_calls.callbacks.check(check_request(request), ended=self._finish is not None)

    @workflow.update(name="resolve", description="Decide about a stuck step: retry, done, skip or compensate.")
    async def resolve(self, decision: RawValue = NO_INPUT) -> RawValue:
        request = request_fields(decision)
        self._decisions += 1
        event = to_decision_event(request, proven=is_proven_decision(self.trust, request, self._decisions))
        if not self._started:
            await self._begun()
            event = replace(event, at=workflow.time())
            if (refusal := self._decision_refusal(event)) is not None:
                raise refused_error(refusal)
        if event.step == RELEASE_ACTIVITY and self._machine is not None:
            self._machine.note_release_left(event)
            self._locks.leave()
        else:
            self._feed(event)
        return self._answer()

    @resolve.validator
    def check_decision(self, decision: RawValue = NO_INPUT) -> None:
        request = check_request(decision)
        try:
            event = to_decision_event(request)
        except (KeyError, TypeError, AttributeError) as error:
            raise refused_error(f"a decision needs step, decision, reason and who: {error}") from None
        if self._started and (refusal := self._decision_refusal(event)) is not None:
            raise refused_error(refusal)
        if event.decision == "retry" and history_is_full():
            raise refused_error(full_history_text("retries"))
        # A validator is not called in a replay, so what was accepted stays accepted.
        if is_signed_decision(event) and not is_trusted(self.trust, lambda trust: trusts_decision(trust, request)):
            raise refused_error(
                "new arguments and definitions must be signed with the key of the project, for this run and this one "
                "decision; use saga resolve in the project's folder"
            )
