"""Admits the attempts of one worker, and learns from how they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from saga_activities.circuit_breakers import AdmittedAttempt, CircuitBreakers
from saga_activities.concurrency import uncancellable
from saga_activities.standing_pauses import StandingPauses
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation

T = TypeVar("T")


class AttemptAdmission:
    """Holds back attempts that a standing pause or an open circuit breaker concerns."""

    def __init__(self, pauses: StandingPauses, breakers: CircuitBreakers) -> None:
        self._pauses = pauses
        self._breakers = breakers

    async def admit(
        self, invocation: Invocation, saga: str, attempt: int, seconds: float, *, is_single: bool = True
    ) -> AdmittedAttempt | Outcome:
        """The attempt if it may be made, which :meth:`make` does; else the outcome of one that is held back.

        ``seconds``: the time that it has. ``is_single``: it is one call, not several in one transaction, which have
        their saga and their connections in common with ``invocation``.
        """
        held = await self._pauses.hold(invocation, saga, attempt)
        if held is not None:
            return held
        return await self._breakers.admit(invocation, attempt, seconds, is_single=is_single)

    async def make(
        self, admitted: AdmittedAttempt, attempt: Awaitable[Outcome], *, awaits_reply: Callable[[], bool]
    ) -> Outcome:
        """Make an attempt of one call. ``awaits_reply``: after an error, whether it goes on without this worker."""
        outcome = await self._outcome(admitted, attempt, awaits_reply)
        # Its effect may be there: a cancel must not make its outcome unknown.
        return await uncancellable(self._breakers.ended(admitted, outcome))

    async def make_chunk(
        self, admitted: AdmittedAttempt, attempt: Awaitable[Sequence[Outcome | None]]
    ) -> Sequence[Outcome | None]:
        """Make an attempt of several calls in one transaction."""
        outcomes = await self._outcome(admitted, attempt, lambda: False)
        return await uncancellable(self._breakers.chunk_ended(admitted, outcomes))

    async def _outcome(self, admitted: AdmittedAttempt, attempt: Awaitable[T], awaits_reply: Callable[[], bool]) -> T:
        try:
            return await attempt
        except BaseException:
            await uncancellable(self._breakers.interrupted(admitted, answered=awaits_reply()))
            raise
