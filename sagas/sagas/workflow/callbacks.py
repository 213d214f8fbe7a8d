"""Callbacks of a run: a request that was accepted has its outcome when the participant calls back.

For the machine the request is in flight until then. `saga serve` receives a callback and hands it to the run as a
signed update; an activity reads it, as it reads the response to a request. The callback may arrive before the response
to its request, and while the run continues as new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NoReturn

from temporalio import workflow

from sagas.builtins.callbacks import CALLBACK, CALLBACK_ACTION, DEFAULT_CALLBACK_TIMEOUT, CallbackRefusal
from sagas.definition import times
from sagas.definition.model import Retry
from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Failure, Outcome, refused_value
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView, StepView
from sagas.workflow.failures import SagaApplicationError, refused_error
from sagas.workflow.limits import HISTORY_LIMIT
from sagas.workflow.run_trust import is_signed_message, verifies_message
from sagas.workflow.summaries import limit_summary
from sagas.workflow.waits import wait_until

Ended = tuple[Outcome, int | None]
"""The outcome of a call, and the number of its attempts; None: unknown."""

SendCall = Callable[[Call], Awaitable[Ended]]

Receipt = Literal["accepted", "answered", "late"]
"""The fate of a callback. ``answered``: another one was first; ``late``: its request is waited for no longer."""

MAX_KEPT_CHARACTERS = 512 * 1024
"""The texts of callbacks that wait to be read; a continued run gets them with its state."""

MAX_LATE_CHARACTERS = 256 * 1024
"""The texts of those that are kept although nothing waits for them, one of each request: it may be sent again."""

MAX_HISTORY_BYTES = 25_000_000
"""The size of a history to which callbacks may be added; Temporal terminates a run at 50 MB."""

_UNSIGNED = "callbacks are received by `saga serve`, which signs them with the key of the project"

_READ_TIMEOUT = 30.0
_READ_RETRY = Retry(max_attempts=1_000_000, initial_interval=1.0, max_interval=30.0)
"""Reading has no effect, and only a worker that is gone can keep it from succeeding."""

_REPEATED = ("connection", "result", CALLBACK)
"""The arguments of the request that its callback is read with."""


@dataclass(slots=True, eq=False)
class _Received:
    """A callback. ``receipt`` is None until it has been read."""

    response: Mapping[str, Any]
    receipt: Receipt | None = None


@dataclass(slots=True)
class _Request:
    """A request with a callback. ``accepted_at``: when it was accepted, in seconds since the epoch, after ``attempts``
    attempts, of which the one with the number ``attempt`` was accepted. ``sent``: by this run or one before it.
    """

    accepted_at: float | None = None
    attempt: int | None = None
    attempts: int | None = None
    answered: bool = False
    sent: bool = False
    received: list[_Received] = field(default_factory=list[_Received])

    def answer(self) -> None:
        """The first conclusive callback has been read; no other one counts."""
        self.answered = True
        for waiting in self.received:
            waiting.receipt = "answered"
        self.received.clear()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "received": [dict(waiting.response) for waiting in self.received]}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> _Request:
        at = state["accepted_at"]
        received = [_Received(response) for response in state["received"]]
        return cls(**{**state, "accepted_at": None if at is None else float(at), "received": received})


class Callbacks:
    """The requests with callbacks of one run, by their idempotency keys."""

    def __init__(self) -> None:
        self._requests: dict[str, _Request] = {}
        self._open: set[str] = set()
        self._waits: dict[str, float] = {}
        """Until when callbacks are waited for, in seconds since the epoch, by entry id."""
        self._hands_on = False
        self._updates = 0

    # --- continue-as-new ----------------------------------------------------------------------------------------

    def restore(self, handed: Mapping[str, Any]) -> None:
        """Go on with what the run before has handed on; what has arrived since comes last."""
        for key, state in handed.items():
            request = _Request.from_json(state)
            request.received += self._requests[key].received if key in self._requests else []
            self._requests[key] = request

    def to_json(self) -> dict[str, Any]:
        """The state for a continued run."""
        return {key: request.to_json() for key, request in self._requests.items()}

    def hand_on(self) -> None:
        """From now on wait for no callback: the next run does."""
        self._hands_on = True

    def stay(self) -> None:
        """The run does not continue as new; the calls that were handed on are issued again."""
        self._hands_on = False

    # --- receiving ----------------------------------------------------------------------------------------------

    async def receive(self, sent: Mapping[str, Any]) -> Receipt:
        """Receive a callback, and wait until it is read. One that comes before the response to its request, or too
        late, is kept: for that response, or for a retry of the request.

        Raises SagaApplicationError for an update that `saga serve` has not signed.
        """
        self._updates += 1
        if not is_signed_message("callback", _receivers(), sent, number=self._updates):
            raise refused_error(_UNSIGNED)
        key, response = sent["key"], sent["response"]
        request = self._requests.setdefault(key, _Request())
        if request.answered:
            return "answered"
        received = _Received(response)
        request.received.append(received)
        if self._is_late(key):
            return "late"
        if request.accepted_at is not None:
            await wait_until(lambda: received.receipt is not None or self._hands_on or key not in self._open)
        return received.receipt or "accepted"

    def check(self, sent: Mapping[str, Any], *, ended: bool) -> None:
        """Refuse an update that is not a callback of `saga serve`, or one that does not count: nothing of it comes
        into the history then, however often it is sent.

        Raises SagaApplicationError, of the type that :data:`~sagas.builtins.callbacks.CallbackRefusal` has.
        """
        key, response = sent.get("key"), sent.get("response")
        if not isinstance(key, str) or not isinstance(response, dict) or not isinstance(response.get("text"), str):
            raise refused_error("a callback has `key` and `response`")
        if not verifies_message("callback", _receivers(), sent):
            raise refused_error(_UNSIGNED)
        request = self._requests.get(key)
        if request is not None and request.answered:
            _refuse("CallbackAnswered")
        is_open = key in self._open
        limit = MAX_KEPT_CHARACTERS if is_open else MAX_LATE_CHARACTERS
        has_room = self._kept(open=is_open) + len(response["text"]) <= limit and _history_has_room()
        if ended or (not is_open and not (has_room and (request is None or not request.received))):
            _refuse("CallbackLate")
        if not has_room:
            _refuse("CallbackBusy")

    def _kept(self, *, open: bool) -> int:
        """The length of the texts that are kept for requests that are, or are not, waited for."""
        requests = (request for key, request in self._requests.items() if (key in self._open) == open)
        return sum(len(waiting.response["text"]) for request in requests for waiting in request.received)

    def _is_late(self, key: str) -> bool:
        request = self._requests.get(key)
        return request is not None and request.sent and key not in self._open

    def shown_in(self, view: SagaView) -> SagaView:
        """The view, in which each step that waits for a callback says so, and until when."""
        if not self._waits:
            return view
        return replace(view, steps=tuple(map(self._with_wait, view.steps)))

    def _with_wait(self, step: StepView) -> StepView:
        if step.id not in self._waits:
            return step
        until = times.format_timestamp(self._waits[step.id])
        return replace(step, progress={"doing": f"waiting for the callback until {until}"})

    # --- requests -----------------------------------------------------------------------------------------------

    def accepted_at(self, key: str) -> float | None:
        """When the request was accepted whose callback is waited for, in seconds since the epoch."""
        request = self._requests.get(key)
        return None if request is None else request.accepted_at

    async def perform(self, call: Call, send: SendCall, is_cancelled: Callable[[], bool]) -> Ended | None:
        """Send the request, unless it has been accepted, and wait for its callback. None: the next run goes on."""
        try:
            limit = times.to_seconds(_settings(call).get("timeout", DEFAULT_CALLBACK_TIMEOUT))
        except ValueError as error:
            return Outcome("failed", failure=refused_value(f"`callback.timeout`: {error}"), retryable=False), 0
        request = self._requests.setdefault(call.key, _Request())
        self._open.add(call.key)
        ended = await self._perform(call, request, limit, send, is_cancelled)
        self._waits.pop(call.entry, None)
        if ended is not None:  # until the next run takes over, a callback is not late
            self._open.discard(call.key)
        return ended

    async def _perform(
        self, call: Call, request: _Request, limit: float, send: SendCall, is_cancelled: Callable[[], bool]
    ) -> Ended | None:
        if request.accepted_at is None:
            request.answered, request.sent = False, True
            outcome, attempts = await send(call)
            if outcome.kind != "done" and not request.received:
                return outcome, attempts
            request.accepted_at, request.attempt, request.attempts = workflow.time(), outcome.attempt, attempts
        until = self._waits[call.entry] = request.accepted_at + limit
        outcome = await self._await_outcome(call, request, until, limit, send, is_cancelled)
        if outcome is None:
            return None
        request.accepted_at = None
        return replace(outcome, attempt=request.attempt), request.attempts

    async def _await_outcome(
        self,
        call: Call,
        request: _Request,
        until: float,
        limit: float,
        send: SendCall,
        is_cancelled: Callable[[], bool],
    ) -> Outcome | None:
        """The outcome of an accepted request; None: the next run goes on."""
        while True:
            await wait_until(
                lambda: bool(request.received) or is_cancelled() or self._hands_on,
                timeout=max(until - workflow.time(), 0.001),
                summary=limit_summary(f"wait for the callback of {call.summary}"),
            )
            if request.received:
                read = request.received.pop(0)
                outcome = await _read(call, read.response, send)
                read.receipt = "accepted"
                if outcome is not None:
                    request.answer()
                    return outcome
            elif is_cancelled():
                return Outcome("unknown", failure=Failure("Cancelled", "it was cancelled before its callback arrived"))
            elif self._hands_on:
                return None
            elif workflow.time() >= until:
                message = f"no callback has arrived within {times.format_duration(limit)}"
                return Outcome("unknown", failure=Failure("NoCallback", message))


async def _read(call: Call, response: Mapping[str, Any], send: SendCall) -> Outcome | None:
    """The outcome that a callback has for its request; None if it is neither a yes nor a no."""
    reading = replace(
        call,
        id=f"{call.id}~callback",
        op="probe",
        action=CALLBACK_ACTION,
        arguments={name: call.arguments[name] for name in _REPEATED if name in call.arguments} | {"response": response},
        summary=f"callback of {call.summary}",
        timeout=_READ_TIMEOUT,
        retry=_READ_RETRY,
        heartbeat=None,
        cancellable=False,
        at_most_once=False,
        returns_failure=False,
        own_retry=False,
        remembers_rejections=True,
        earlier_attempts=0,
        delay=0.0,
    )
    outcome, _ = await send(reading)
    if outcome.kind == "done":
        read = outcome.result if isinstance(outcome.result, dict) else {}
        return Outcome.done(read.get("result")) if read.get("done") else None
    if outcome.kind == "rejected":
        # However often the request was sent: none of its attempts has an effect.
        return replace(outcome, definite=True, retry_after=None)
    return replace(outcome, kind="unknown", not_started=False)


def _refuse(type: CallbackRefusal) -> NoReturn:
    raise SagaApplicationError("the callback does not count", type=type, non_retryable=True)


def _history_has_room() -> bool:
    """False for a run that cannot continue as new, and is on its way to the size at which Temporal terminates it."""
    info = workflow.info()
    return info.get_current_history_length() < HISTORY_LIMIT and info.get_current_history_size() < MAX_HISTORY_BYTES


def _receivers() -> list[str]:
    return [workflow.info().workflow_id.removesuffix(UNDO_SUFFIX)]


def awaits_callback(call: Call) -> bool:
    """True for a request that a participant may accept now and answer later."""
    return call.action == "http" and call.op != "probe" and isinstance(call.arguments.get(CALLBACK), Mapping)


def _settings(call: Call) -> Mapping[str, Any]:
    return call.arguments[CALLBACK]
