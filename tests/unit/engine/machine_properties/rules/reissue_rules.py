"""After a crash a new run reissues exactly what was in flight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sagas.machine.machine import Machine
from sagas.protocol.messages import Call, CancelCall, CancelSaga, StartSaga, StartTimer, UndoSaga
from tests.unit.engine.machine_properties.environment.children import ChildFlight
from tests.unit.engine.machine_properties.environment.environment import Flight
from tests.unit.engine.machine_properties.oracle.ledger import Violation


def check(
    restored: Machine,
    calls_now: Mapping[str, Flight],
    children_now: Mapping[str, ChildFlight],
    timers_now: Mapping[str, float],
    now: float,
    *,
    continuing: bool,
) -> None:
    """A new run reissues exactly what is in flight, and timers keep their due time."""
    again = restored.reissue(now)
    calls = {c.id: c for c in again if isinstance(c, Call)}
    children = {c.id: c for c in again if isinstance(c, StartSaga | UndoSaga)}
    cancelled = {c.id for c in again if isinstance(c, CancelCall | CancelSaga)}
    timers = {c.id: now + c.seconds for c in again if isinstance(c, StartTimer)}
    if not continuing:
        before = {id: flight.call for id, flight in calls_now.items()}
        same = _without_times(calls) == _without_times(before)
        if not same or any(map(_has_more_time, calls.values(), map(before.get, calls))):
            raise Violation("snapshot", f"asked again: {calls}; in flight: {calls_now}")
        if children != {id: flight.command for id, flight in children_now.items()}:
            raise Violation("snapshot", f"asked again: {children}; in flight: {children_now}")
        wanted = {id for id, flight in {**calls_now, **children_now}.items() if flight.cancelled}
        if cancelled != wanted:
            raise Violation("snapshot", f"cancelled again: {cancelled}; cancelled before: {wanted}")
    late = {id for id in timers if abs(timers[id] - max(now, timers_now.get(id, 0.0))) > 0.001}
    if timers.keys() != timers_now.keys() or late:
        raise Violation("snapshot", f"timers set again: {timers}; before: {timers_now}")


def _without_times(calls: Mapping[str, Call]) -> dict[str, Call]:
    """Without what becomes less while a call waits for its next attempt."""
    return {id: replace(call, delay=0.0, retry=replace(call.retry, give_up_after=None)) for id, call in calls.items()}


def _has_more_time(call: Call, before: Call | None) -> bool:
    if before is None:
        return True
    ends = [
        math.inf if attempt.retry.give_up_after is None else attempt.retry.give_up_after for attempt in (call, before)
    ]
    return call.delay > before.delay or ends[0] > ends[1]
