"""The rooms that calls in flight are promised for their results, so that a guard refuses a larger one (rule 9).

Calls in flight share the budget of the saga and know nothing of each other. So each guarded one is promised a room: all
that is left if nothing can run in parallel to it, else a part. A result beyond it is rolled back; if it fits into what
is left, or may once the others have ended, the attempt is made again with that room, else the step fails for good.
An attempt whose outcome is unknown may have been committed, so its room stays promised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sagas.definition.model import backoff
from sagas.machine import retries, state_budget
from sagas.machine.internal_events import StartAttempt
from sagas.machine.state import Entry, SagaRun, StepRecord
from sagas.protocol.outcomes import Outcome
from sagas.protocol.result_room import RESULT_TOO_LARGE, RETURN_LESS, size_words, told_sizes


def reserve(run: SagaRun, entry: Entry) -> None:
    """Promise a room to the forward call of an entry, and never less than to an attempt that may be committed."""
    if not run.step(entry).do.connection:
        return
    own, promised = run.result_rooms.get(entry.id, 0), _promised_to_others(run, entry)
    if entry.result_size:
        left = state_budget.room_left(run.kept_bytes, promised)
        part = state_budget.room_of_call(run.kept_bytes, promised, alone=False)
        room = left if not promised else min(left, max(part, 2 * entry.result_size))
    else:
        room = state_budget.room_of_call(run.kept_bytes, promised, alone=_is_alone(run, entry))
    run.result_rooms[entry.id] = max(own, room)


def keep_result(run: SagaRun, entry: Entry, result: Any) -> None:
    """Store the result of an entry within the room it was promised, or else within what nobody is promised. It takes
    the place of the one that the entry has.
    """
    give_back(run, entry)
    left = state_budget.room_left(run.kept_bytes, _promised_to_others(run, entry))
    room = max(run.result_rooms.pop(entry.id, 0), left)
    entry.result, run.kept_bytes = state_budget.fit_into_budget(run.kept_bytes, result, room)
    entry.result_size = 0


def give_back(run: SagaRun, entry: Entry) -> None:
    """Take the result of an entry off the budget, because it goes."""
    if not entry.taken_over:  # that of an earlier run was never counted
        run.kept_bytes = max(0, run.kept_bytes - state_budget.budgeted_size(entry.result))
    entry.result = None


def keep_items(run: SagaRun, record: StepRecord, items: list[Any]) -> None:
    """Store the list of a for_each, which is always kept."""
    record.items = items
    run.kept_bytes += state_budget.budgeted_size(items)


def forget_step(run: SagaRun, record: StepRecord) -> None:
    """Give back what a step has of the budget, because its record goes: it runs again with another one."""
    for entry in record.entries:
        run.result_rooms.pop(entry.id, None)
        give_back(run, entry)
    if not any(entry.taken_over for entry in record.entries):
        run.kept_bytes = max(0, run.kept_bytes - state_budget.budgeted_size(record.items))


def attempt_refused(run: SagaRun, entry: Entry, outcome: Outcome) -> Outcome:
    """The outcome, whose failure tells what is left if the result was too large. It is noted how large it was."""
    sizes = _sizes(run, entry, outcome)
    if sizes is None or outcome.failure is None:
        return outcome
    entry.result_size = sizes[1]
    left = state_budget.room_left(run.kept_bytes)
    message = (
        f"the result of {entry.id} has {size_words(*sizes)}, and the saga has {left:,} left of the "
        f"{state_budget.STATE_BUDGET:,} that all its results share"
    )
    if fits_later(run, entry, outcome):
        message += ", a part of it for each call in flight; it is tried again with the room that it needs"
    else:
        message += f": {RETURN_LESS}"
    return replace(outcome, failure=replace(outcome.failure, message=message))


def attempt_ended(run: SagaRun, entry: Entry) -> None:
    """Take the room back of an attempt that certainly had no effect."""
    if entry.outcome not in ("unknown", "done"):
        run.result_rooms.pop(entry.id, None)


def fits_later(run: SagaRun, entry: Entry, outcome: Outcome) -> bool:
    """True if the result was too large for its call only because of others that are in flight."""
    sizes = _sizes(run, entry, outcome)
    if sizes is None or outcome.failure is None:
        return False
    left, room = state_budget.room_left(run.kept_bytes), outcome.failure.details.get("room")
    return sizes[1] <= left and isinstance(room, int) and room < left


def try_again(run: SagaRun, entry: Entry) -> None:
    """Repeat the attempt: at once if its result fits into what is left now, else when others may have ended."""
    entry.retry_baseline += 1  # the step is not to blame
    promised = _promised_to_others(run, entry)
    if entry.result_size <= state_budget.room_left(run.kept_bytes, promised):
        run.post(StartAttempt(entry))
    else:
        retries.schedule_retry(run, entry, backoff(run.step(entry).do.retry, entry.min_attempts))


def _sizes(run: SagaRun, entry: Entry, outcome: Outcome) -> tuple[int, int] | None:
    failure = outcome.failure
    is_guards = run.step(entry).do.connection is not None and outcome.kind == "failed"
    if not is_guards or failure is None or failure.type != RESULT_TOO_LARGE:
        return None
    return told_sizes(failure.details)


def _promised_to_others(run: SagaRun, entry: Entry) -> int:
    return sum(run.result_rooms.values()) - run.result_rooms.get(entry.id, 0)


def _is_alone(run: SagaRun, entry: Entry) -> bool:
    items = run.record(entry).items
    at_once = 1 if items is None else min(len(items), run.step(entry).max_parallel)
    return at_once == 1 and run.plan.is_alone(entry.step)
