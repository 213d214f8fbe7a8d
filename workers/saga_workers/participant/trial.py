"""A trial: the requests of one check of `saga participant test`, under one key, and their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sagas.errors import SagaError, UsageError
from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, decode_call, encode_call
from sagas.simulation import StepCalls
from sagas.text.exact_json import readable_json
from sagas.text.shortening import counted, shorten

COPIES = 8
"""Concurrent duplicates of one request."""

RETRY_DELAY = 0.5
"""Seconds between a response that was cut off and the next request with its key."""

_BUSY_STATUSES = (425, 429, 502, 503, 504)
_ATTEMPTS = 4
_MAX_BUSY_DELAY = 5.0
_SHOWN_CHARACTERS = 200


class Transport(Protocol):
    """The transport of requests to the participant."""

    async def deliver(self, invocation: Invocation, copies: int = 1) -> list[Outcome]:
        """Deliver the request ``copies`` times at once; returns the outcome of each delivery."""
        ...

    async def cut_off(self, invocation: Invocation) -> None:
        """Deliver the request, and close the connection before its response arrives.

        Raises NotTestable if this transport has no connection to close.
        """
        ...


class NotTestable(Exception):
    """Raised when a check does not apply; the message says why."""


class FirstRequestFailed(SagaError):
    """The participant does not do what every check begins with."""


class NoEffect(SagaError):
    """The participant answers that it has done a request, and has no effect of it: it refuses in a way that no setting
    tells the saga.
    """


class BrokenPromise(Exception):
    """The participant did not do what it promised; the message says what it did instead.

    ``proposal``: the setting of the step with which a saga understands that, in YAML.
    """

    def __init__(self, message: str, proposal: str | None = None) -> None:
        super().__init__(message)
        self.proposal = proposal


CountEffects = Callable[[str], Awaitable[int]]
"""The number of effects that the participant has now; the argument is the forward key of the trial."""


@dataclass(slots=True)
class Trial:
    """The requests of one check, under one key.

    ``other`` makes the same forward request with other arguments; without it, one of its arguments is changed.
    ``rejected`` makes one that the participant rejects; None if there is none.
    """

    calls: StepCalls
    transport: Transport
    other: StepCalls | None = None
    rejected: StepCalls | None = None
    count: CountEffects | None = None
    steps: list[tuple[str, str]] = field(default_factory=list)
    operations: frozenset[str] = frozenset()
    _effects_before: int = 0
    _to_undo: Outcome | None = None

    async def begin(self) -> None:
        """Read the number of effects before the first request."""
        if self.count is not None:
            self._effects_before = await self.count(self.calls.do().key)

    async def first(self) -> Outcome:
        """The first forward request, without which nothing can be checked. Raises SagaError unless it is done."""
        outcome = await self._send("do", self.calls.do())
        if outcome.kind != "done":
            raise FirstRequestFailed(
                f"the participant has not done the first request, so nothing can be tested: {describe(outcome)}",
                help="check that it runs, and give arguments that it accepts",
            )
        self._to_undo = outcome
        return outcome

    async def again(self) -> Outcome:
        """The forward request with the same key and arguments."""
        outcome = await self._send("do", self.calls.do())
        if outcome.kind == "done" and self._to_undo is None:
            self._to_undo = outcome
        return outcome

    async def with_other_arguments(self) -> Outcome:
        """The forward request with the same key and other arguments."""
        call = with_other_argument(self.calls.do()) if self.other is None else self.other.do()
        return await self._send("do with other arguments", call)

    async def to_be_rejected(self) -> Outcome:
        """The forward request with arguments that the participant rejects. Raises NotTestable without any."""
        if self.rejected is None:
            raise NotTestable("no arguments are given that it rejects: --rejected-data, or --rejected-input for a step")
        return await self._send("do to be rejected", self.rejected.do())

    async def duplicates(self) -> list[Outcome]:
        """Concurrent deliveries of the forward request."""
        outcomes = await self.transport.deliver(self._invocation(self.calls.do()), COPIES)
        self.steps.append(
            (f"{len(outcomes)} × do at once", "; ".join(sorted({describe(outcome) for outcome in outcomes})))
        )
        self._to_undo = next((outcome for outcome in outcomes if outcome.kind == "done"), None)
        return outcomes

    async def cut_off(self, delay: float = RETRY_DELAY) -> None:
        """The forward request, whose response is lost, and ``delay`` seconds."""
        await self.transport.cut_off(self._invocation(self.calls.do()))
        self.steps.append(("do, connection closed", "no response was read"))
        await asyncio.sleep(delay)

    async def undo(self, done: Outcome | None) -> Outcome:
        """The undo after the outcome ``done``; None: of a request whose outcome is unknown, as if it never arrived."""
        try:
            call = self.calls.undo_of_unknown() if done is None else self.calls.undo(done.result)
        except UsageError as error:
            raise BrokenPromise(f"the saga cannot undo it: {error.message}") from None
        outcome = await self._send("undo", call)
        if outcome.kind == "done":
            self._to_undo = None
        return outcome

    async def confirm(self, done: Outcome) -> Outcome:
        """The confirm after the outcome ``done``."""
        return await self._send("confirm", self.calls.confirm(done.result))

    async def expect_effects(self, expected: int, *, of_done: bool = False) -> None:
        """Raise BrokenPromise unless the trial has left so many effects; passes without a count.

        ``of_done``: of a first request that was done, and nothing undone. Raises NoEffect if it has none.
        """
        if self.count is None:
            return
        seen = await self.count(self.calls.do().key) - self._effects_before
        self.steps.append(("count the effects", f"{seen} since the beginning"))
        if of_done and seen == 0:
            raise NoEffect(
                "the participant answers that it has done the request, but has no effect of its key, so nothing can be"
                f" tested: {self.steps[0][1]}",
                help="give arguments that it accepts; if this response is a refusal, the step needs `rejected_when`"
                " (or --count counts something else)",
            )
        if seen != expected:
            raise BrokenPromise(f"it has {counted(seen, 'effect')} of this key, not {expected}")

    async def clean_up(self) -> None:
        """Undo what the trial has left."""
        if self._to_undo is not None and self.calls.definition.step(self.calls.step).compensate is not None:
            await self.undo(self._to_undo)

    async def _send(self, sent: str, call: Call) -> Outcome:
        """Send a request, again a little later while the participant is busy or its connection breaks, as a saga would.

        A participant may close an idle connection just when the request is sent.
        """
        attempt = 1
        while True:
            [outcome] = await self.transport.deliver(self._invocation(call))
            self.steps.append((sent, describe(outcome)))
            if not _is_passing(outcome) or attempt == _ATTEMPTS:
                return outcome
            await asyncio.sleep(min(outcome.retry_after or 0.2 * attempt, _MAX_BUSY_DELAY))
            attempt += 1

    def _invocation(self, call: Call) -> Invocation:
        return decode_call(call.action, encode_call(call, self.calls.saga_id))


_BODIES = ("json", "form", "body", "value", "query")
"""The arguments of `http` and `kafka.request` that may be changed."""

_UNCHANGED = object()


def with_other_argument(call: Call) -> Call:
    """The call with its first number increased, else with something appended to its first string.

    Raises NotTestable if its body has neither.
    """
    for name in _BODIES:
        for kind in (int, str):
            changed = _changed(call.arguments.get(name), kind)
            if changed is not _UNCHANGED:
                return replace(call, arguments={**call.arguments, name: changed})
    raise NotTestable("the request has no number and no string that could be changed; give other arguments")


def _changed(value: Any, kind: type) -> Any:
    if isinstance(value, kind) and not isinstance(value, bool):
        return value + 1 if isinstance(value, int) else f"{value}-other"
    copy: Any
    if isinstance(value, Mapping):
        copy, items = dict(value), value.items()
    elif isinstance(value, list):
        copy, items = list(value), enumerate(value)
    else:
        return _UNCHANGED
    for key, item in items:
        changed = _changed(item, kind)
        if changed is not _UNCHANGED:
            copy[key] = changed
            return copy
    return _UNCHANGED


def describe(outcome: Outcome) -> str:
    """An outcome on one line, with its result or its failure."""
    if outcome.kind == "done":
        return f"done {shorten(readable_json(outcome.result), _SHOWN_CHARACTERS)}"
    failure = outcome.failure
    return f"{outcome.kind}: {shorten(failure.message, _SHOWN_CHARACTERS)}" if failure is not None else outcome.kind


def _is_passing(outcome: Outcome) -> bool:
    """True for a failure that the next attempt may not have."""
    if outcome.failure is None or outcome.kind not in ("unknown", "failed"):
        return False
    return outcome.failure.details.get("status") in _BUSY_STATUSES or outcome.failure.type == "HttpConnection"
