"""The checks of `saga participant test`: what a participant promises about an idempotency key.

Each check is a short conversation under a key of its own. A :class:`Trial` sends its requests as a saga would and
records them; the check judges the outcomes. Without a count of effects a second effect shows only if its response
differs from the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from sagas.errors import SagaError, UsageError
from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, decode_call, encode_call
from sagas.simulation import StepCalls
from sagas.text.exact_json import readable_json

COPIES = 8
"""Concurrent duplicates of one request."""

RETRY_DELAY = 0.5
"""Seconds between a response that was cut off and the next request with its key."""

_BUSY_STATUSES = (425, 429, 502, 503, 504)
_ATTEMPTS = 4
_MAX_BUSY_DELAY = 5.0
_SHOWN_CHARACTERS = 200

Verdict = Literal["passed", "failed", "skipped"]


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
    """This check does not apply; the message says why."""


class BrokenPromise(Exception):
    """The participant did not do what it promised; the message says what it did instead."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of a participant. ``steps`` are the requests in their order, each with the response.

    ``problem``: why the check has failed or was skipped; None if it has passed.
    """

    check: str
    promise: str
    verdict: Verdict
    steps: Sequence[tuple[str, str]]
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "promise": self.promise,
            "verdict": self.verdict,
            "steps": [{"sent": sent, "seen": seen} for sent, seen in self.steps],
            "problem": self.problem,
        }


CountEffects = Callable[[str], Awaitable[int]]
"""The number of effects that the participant has now; the argument is the forward key of the trial."""


@dataclass(slots=True)
class Trial:
    """The requests of one check, under one key.

    ``other`` makes the same forward request with other arguments; None: one of its arguments is changed.
    """

    calls: StepCalls
    transport: Transport
    other: StepCalls | None = None
    count: CountEffects | None = None
    steps: list[tuple[str, str]] = field(default_factory=list)
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
            raise SagaError(
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

    async def duplicates(self) -> list[Outcome]:
        """Concurrent deliveries of the forward request."""
        outcomes = await self.transport.deliver(self._invocation(self.calls.do()), COPIES)
        self.steps.append(
            (f"{len(outcomes)} × do at once", "; ".join(sorted({describe(outcome) for outcome in outcomes})))
        )
        self._to_undo = next((outcome for outcome in outcomes if outcome.kind == "done"), None)
        return outcomes

    async def cut_off(self) -> None:
        """The forward request, whose response is lost."""
        await self.transport.cut_off(self._invocation(self.calls.do()))
        self.steps.append(("do, connection closed", "no response was read"))
        await asyncio.sleep(RETRY_DELAY)

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

    async def expect_effects(self, expected: int) -> None:
        """Raise BrokenPromise unless the trial has left so many effects; passes without a count."""
        if self.count is None:
            return
        seen = await self.count(self.calls.do().key) - self._effects_before
        self.steps.append(("count the effects", f"{seen} since the beginning"))
        if seen != expected:
            raise BrokenPromise(f"it has {seen} effects of this key, not {expected}")

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
        return f"done {_shortened(readable_json(outcome.result))}"
    failure = outcome.failure
    return f"{outcome.kind}: {_shortened(failure.message)}" if failure is not None else outcome.kind


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


async def _same_key_twice(trial: Trial) -> None:
    first = await trial.first()
    _expect_same(first, await trial.again(), "the second request")
    await trial.expect_effects(1)


async def _same_key_other_arguments(trial: Trial) -> None:
    first = await trial.first()
    other = await trial.with_other_arguments()
    if other.kind == "done" and other.result != first.result:
        raise BrokenPromise("it was done once more, with the other arguments")
    if other.kind != "done" and not _is_refusal(other):
        raise BrokenPromise(f"it neither refused it nor gave the first response: {describe(other)}")
    _expect_same(first, await trial.again(), "the first request, sent again after that,")
    await trial.expect_effects(1)


async def _undo_before_do(trial: Trial) -> None:
    _expect_done(await trial.undo(None), "the undo of a key that never arrived")
    late = await trial.again()
    if late.kind == "done":
        raise BrokenPromise("the request that arrived after its undo was done")
    _expect_refusal(late, "the request that arrived after its undo")
    await trial.expect_effects(0)


async def _do_after_undo(trial: Trial) -> None:
    first = await trial.first()
    _expect_done(await trial.undo(first), "the undo")
    late = await trial.again()
    if late.kind == "done" and late.result != first.result:
        raise BrokenPromise("a delayed duplicate of the request was done once more after the undo")
    if late.kind != "done":
        _expect_refusal(late, "the delayed duplicate after the undo")
    await trial.expect_effects(0)


async def _undo_twice(trial: Trial) -> None:
    first = await trial.first()
    undone = await trial.undo(first)
    _expect_done(undone, "the undo")
    _expect_same(undone, await trial.undo(first), "the second undo")
    await trial.expect_effects(0)


async def _confirm_after_undo(trial: Trial) -> None:
    first = await trial.first()
    _expect_done(await trial.undo(first), "the undo")
    confirmed = await trial.confirm(first)
    if confirmed.kind == "done":
        raise BrokenPromise("it confirmed what was undone")
    _expect_refusal(confirmed, "the confirm after the undo")
    await trial.expect_effects(0)


async def _concurrent_duplicates(trial: Trial) -> None:
    outcomes = await trial.duplicates()
    done = [outcome for outcome in outcomes if outcome.kind == "done"]
    if len(done) < len(outcomes):
        done.append(await trial.again())
    if any(outcome.kind == "rejected" for outcome in outcomes) and done[-1].kind == "done":
        raise BrokenPromise("it rejected duplicates of a request that it did; a saga takes a rejection for no effect")
    for duplicate in done:
        _expect_same(done[0], duplicate, "a duplicate")
    await trial.expect_effects(1)


async def _response_cut_off(trial: Trial) -> None:
    await trial.cut_off()
    _expect_done(await trial.again(), "the request, sent again after its response was lost,")
    await trial.expect_effects(1)


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``needs`` are the operations of the step that it sends besides the forward request."""

    name: str
    promise: str
    run: Callable[[Trial], Awaitable[None]]
    needs: frozenset[str] = frozenset()


CHECKS = (
    Check("same key twice", "a key that comes again gets the same response and has no second effect", _same_key_twice),
    Check(
        "same key, other arguments",
        "a key that comes with other arguments is refused, or gets the first response",
        _same_key_other_arguments,
    ),
    Check(
        "undo before do",
        "the undo of a key that never arrived is done, and the request that arrives later is rejected",
        _undo_before_do,
        frozenset({"undo"}),
    ),
    Check(
        "do after undo",
        "a request that arrives again after its undo is rejected, or gets the first response without an effect",
        _do_after_undo,
        frozenset({"undo"}),
    ),
    Check(
        "undo twice",
        "an undo that comes again gets the same response and changes nothing",
        _undo_twice,
        frozenset({"undo"}),
    ),
    Check(
        "confirm after undo",
        "what was undone is never confirmed",
        _confirm_after_undo,
        frozenset({"undo", "confirm"}),
    ),
    Check(
        "concurrent duplicates",
        "duplicates that arrive at once have one effect, and none of them is rejected",
        _concurrent_duplicates,
    ),
    Check(
        "response cut off",
        "a request whose connection broke has its effect once, and is answered when it is sent again",
        _response_cut_off,
    ),
)


async def run_check(check: Check, trial: Trial, operations: frozenset[str]) -> CheckResult:
    """Run one check; ``operations`` are those that the step has besides the forward one.

    Raises SagaError if the participant does not do what every check begins with.
    """
    verdict: Verdict = "passed"
    problem: str | None = None
    try:
        missing = sorted(check.needs - operations)
        if missing:
            raise NotTestable(f"there is no {' and no '.join(missing)}")
        await trial.begin()
        await check.run(trial)
    except NotTestable as reason:
        verdict, problem = "skipped", str(reason)
    except BrokenPromise as broken:
        verdict, problem = "failed", str(broken)
    try:
        await trial.clean_up()
    except BrokenPromise as broken:
        verdict, problem = "failed", problem or str(broken)
    return CheckResult(check.name, check.promise, verdict, tuple(trial.steps), problem)


def _expect_done(outcome: Outcome, what: str) -> None:
    if outcome.kind != "done":
        raise BrokenPromise(f"{what} was not done: {describe(outcome)}")


def _expect_same(first: Outcome, later: Outcome, what: str) -> None:
    _expect_done(later, what)
    if later.result != first.result:
        raise BrokenPromise(f"{what} had another result than the first one")


def _expect_refusal(outcome: Outcome, what: str) -> None:
    if outcome.kind != "rejected" and not _is_failed_reply(outcome):
        raise BrokenPromise(f"{what} was not rejected: {describe(outcome)}")


def _is_passing(outcome: Outcome) -> bool:
    """True for a failure that the next attempt may not have."""
    if outcome.failure is None or outcome.kind not in ("unknown", "failed"):
        return False
    return outcome.failure.details.get("status") in _BUSY_STATUSES or outcome.failure.type == "HttpConnection"


def _is_refusal(outcome: Outcome) -> bool:
    """True if the participant says that it did nothing: a rejection, or any status of a client's mistake."""
    status = outcome.failure.details.get("status", 0) if outcome.failure is not None else 0
    return outcome.kind == "rejected" or _is_failed_reply(outcome) or 400 <= status < 500


def _is_failed_reply(outcome: Outcome) -> bool:
    """True for a reply `failed` to a command: like a rejection, it holds for the key for good."""
    return outcome.kind == "failed" and outcome.failure is not None and outcome.failure.type == "Failed"
