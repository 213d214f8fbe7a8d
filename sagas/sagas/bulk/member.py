"""One saga of a bulk workflow: its progress, and what it is waiting for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sagas.bulk.batchable import LONGEST_WAIT
from sagas.bulk.happy_path import HappyPathSaga
from sagas.definition.model import Retry, backoff
from sagas.expressions.limits import WorkMeter
from sagas.machine.machine import Machine
from sagas.protocol.messages import Call, CallEnded, Command, Finish, MachineEvent
from sagas.protocol.origin import MAX_ORIGIN, Origin, reference_to
from sagas.protocol.outcomes import Outcome
from sagas.text.exact_json import encode_json

MAX_INFRASTRUCTURE_ERRORS = 3
MAX_UNKNOWN_ATTEMPTS = 2
"""Errors of infrastructure, and attempts of one call with outcome unknown, after which a saga leaves."""


@dataclass(slots=True)
class PendingCall:
    """A call of the machine that has not ended. ``attempts`` of it have ended, the first began at ``since``.

    ``size``: bytes of its arguments and its origin. ``origin``: that of its saga, for the guard to store with the
    effect; a reference if it has stored it with another one. ``due_at``: when its next attempt may begin; None: now.
    ``unsure``: an attempt before the last may have had its effect. ``conflicts``: those before the last were conflicts,
    which are part of one attempt. ``uncharged``: attempts that use up none of those it may make, see
    :class:`sagas.protocol.outcomes.Outcome`.
    """

    call: Call
    since: float
    size: int
    origin: Origin | None = None
    attempts: int = 0
    unknown: int = 0
    unsure: bool = False
    conflicts: bool = True
    uncharged: int = 0
    last: Outcome | None = None
    due_at: float | None = None
    chunk: int | None = None
    """The number of the chunk that performs it; None while none does."""
    cancelled: bool = False

    @property
    def performed(self) -> bool:
        """True while it is part of a chunk."""
        return self.chunk is not None

    def count_lost(self, attempts: int) -> None:
        """Count attempts of its chunk that gave no answer."""
        self.attempts += attempts
        self.unsure |= attempts > 0


@dataclass(slots=True)
class Member:
    """``progress`` is its machine, or its state on the happy path.

    ``timers`` are the machine's, with the time at which each fires; ``retries`` those of calls to repeat.

    ``effect_recorded``: a guard has stored an effect of the saga, and its origin with it.

    ``why_leaving``: the saga leaves as soon as none of its calls is performed; ``left`` it has.
    """

    id: str
    progress: Machine | HappyPathSaga
    labels: Mapping[str, str]
    calls: dict[str, PendingCall] = field(default_factory=dict)
    timers: dict[str, float] = field(default_factory=dict)
    retries: dict[str, float] = field(default_factory=dict)
    infrastructure_errors: int = 0
    effect_recorded: bool = False
    why_leaving: str | None = None
    has_left: bool = False
    finish: Finish | None = None
    recorded: bool = False

    def leave_happy_path(self) -> Machine:
        """The machine of the saga. One on the happy path gets it now, in the state that it would have reached."""
        if isinstance(self.progress, HappyPathSaga):
            self.progress = self.progress.machine()
        return self.progress

    def next(self, event: MachineEvent, work: WorkMeter) -> Sequence[Command]:
        """Apply one event and return the resulting commands. ``work``: the work of the workflow task."""
        if isinstance(self.progress, HappyPathSaga) and (commands := self.progress.next(event, work)) is not None:
            return commands
        machine = self.leave_happy_path()
        machine.begin_task(work)
        return machine.next(event)

    @property
    def is_performing(self) -> bool:
        return any(pending.performed for pending in self.calls.values())

    @property
    def may_leave(self) -> bool:
        """True while the saga is leaving, when nothing of it is performed here any more."""
        leaving = self.why_leaving is not None and self.finish is None and not self.has_left
        return leaving and not self.is_performing and not self.progress.paused

    @property
    def is_active(self) -> bool:
        return self.finish is None and self.why_leaving is None

    @property
    def due_times(self) -> Iterator[float]:
        """When its timers fire, and its calls are repeated."""
        yield from self.timers.values()
        yield from self.retries.values()

    @property
    def state(self) -> str:
        return self.progress.state

    def attempt_ended(self, pending: PendingCall, outcome: Outcome, at: float) -> CallEnded | float | str:
        """Judge one more attempt: the end of the call, seconds until it is repeated, or why the saga leaves.

        Between the attempts of a call Temporal decides for a saga with a workflow of its own; the rules are the same.
        """
        pending.chunk = None
        if pending.attempts and outcome.not_started:
            # An earlier attempt was started, and may have had its effect.
            kind = "unknown" if pending.unsure else "failed"
            outcome = replace(outcome, kind=kind, not_started=False, counted=False)
        pending.count_lost((outcome.attempt or 1) - 1)
        pending.attempts += 1
        pending.last = outcome
        if not outcome.charged:
            pending.uncharged += 1
        elif outcome.infrastructure:
            self.infrastructure_errors += 1
        if outcome.kind == "unknown" and outcome.charged:
            pending.unknown += 1
        if not may_repeat(pending, outcome, at):
            return end_of_call(pending, outcome, at)
        pending.unsure |= outcome.kind == "unknown"
        pending.conflicts &= outcome.retry_after is not None and outcome.charged
        wait = retry_interval(pending.call.retry, pending.attempts, outcome)
        if not outcome.charged:
            wait = min(wait, LONGEST_WAIT)  # then its chunk is held, for however long
        pending.due_at = at + wait
        if self.infrastructure_errors >= MAX_INFRASTRUCTURE_ERRORS:
            return "its database or network has failed repeatedly"
        if pending.unknown >= MAX_UNKNOWN_ATTEMPTS:
            return "the outcome of several attempts is unknown"
        return wait if wait <= LONGEST_WAIT else "its next attempt is due much later"


def may_repeat(pending: PendingCall, outcome: Outcome, at: float) -> bool:
    retry = pending.call.retry
    if outcome.kind not in ("failed", "unknown") or not outcome.retryable or not outcome.counted:
        return False
    if outcome.not_started or pending.cancelled:
        return False
    charged = pending.attempts - pending.uncharged
    if charged >= max(retry.max_attempts, 1) and outcome.retry_after is None:  # conflicts have their own limit
        return False
    return retry.give_up_after is None or at - pending.since < retry.give_up_after


def retry_interval(retry: Retry, attempts: int, outcome: Outcome) -> float:
    return backoff(retry, attempts) if outcome.retry_after is None else outcome.retry_after


def end_of_call(pending: PendingCall, outcome: Outcome, at: float) -> CallEnded:
    """The end of a call as the machine learns it."""
    attempts: int | None = pending.attempts
    if outcome.not_started:
        attempts = 0
    elif not outcome.counted:
        attempts -= 1
    attempt = pending.attempts if pending.unsure or not pending.conflicts else 1
    clean = attempt > 1 and not pending.unsure
    ended = outcome if outcome.attempt == attempt else replace(outcome, attempt=attempt, nothing_before=clean)
    return CallEnded(pending.call.id, ended, at, attempts)


def pending_call(member: Member, call: Call, at: float) -> PendingCall:
    """A call that begins now, with the origin of its saga if no effect of it has that yet, else a reference."""
    size = _size(call)
    origin = member.progress.origin()
    if call.op != "do" or member.effect_recorded:
        return PendingCall(call, at, size, reference_to(origin, is_short=True))
    input_size = len(encode_json(origin.input)) if origin.has_input else 0
    if size + input_size > MAX_ORIGIN:
        origin, input_size = replace(origin, input=None, has_input=False), 0
    return PendingCall(call, at, size + input_size, origin)


def _size(call: Call) -> int:
    """Bytes of the arguments of a call, as JSON, with those of the action that undoes a confirmed effect."""
    confirmed = call.guard.confirmed if call.guard is not None else None
    return len(encode_json(call.arguments)) + (len(encode_json(confirmed[1])) if isinstance(confirmed, tuple) else 0)
