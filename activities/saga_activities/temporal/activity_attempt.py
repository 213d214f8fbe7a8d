"""The attempt that an activity makes: its context, and what it leaves for the next one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from temporalio import activity

from saga_activities.attempt_context import AttemptContext
from saga_activities.server_clock import ServerClock
from sagas.protocol.outcomes import Outcome
from sagas.workflow.json_payloads import raw_json

DEFAULT_TIMEOUT = timedelta(seconds=30)
"""The time of an attempt for which Temporal has none."""

_WITHOUT_EFFECT = "attempts_without_effect"


class NoteKeys(Protocol):
    """Signs what an attempt leaves for the next one of its call: any client can send heartbeats for an activity."""

    def sign(self, note: Mapping[str, Any]) -> Mapping[str, str] | None:
        """The signature of this note for this call of this run; None without a key."""
        ...

    def verifies(self, note: Mapping[str, Any], signature: Any) -> bool:
        """Return whether a worker of the project has signed this note for this call of this run."""
        ...


note_keys: contextvars.ContextVar[NoteKeys | None] = contextvars.ContextVar("note_keys", default=None)
"""The keys for the notes of the current attempt; None in a worker that accepts calls of any client."""


def attempt_number(info: activity.Info) -> int:
    """The number of the attempt within its call, from 1.

    Temporal counts from 1 again when anybody resets the activity (`temporal activity reset`), or the run while the
    activity waits for its next attempt, but keeps the time at which it was scheduled first. Such an attempt is at least
    the second, so its word alone is not the last one about the effect.
    """
    return info.attempt + 1 if _is_restarted(info) else info.attempt


def _is_restarted(info: activity.Info) -> bool:
    return info.attempt == 1 and not info.is_local and info.current_attempt_scheduled_time > info.scheduled_time


def note_no_effect(outcome: Outcome, info: activity.Info) -> Outcome:
    """The outcome with what is known about the earlier attempts of its call.

    An attempt without an effect leaves the number of all of them in its last heartbeat, which Temporal hands to the
    next attempt. After an attempt that could say nothing the number is too low. Before an attempt that was restarted,
    nobody knows how many there were: it replaces what they have left.
    """
    if _is_restarted(info):
        activity.heartbeat(raw_json(None), raw_json(_signed_note(0)))
        return replace(outcome, nothing_before=False)
    clean = info.attempt == 1 or (not info.is_local and _is_noted(info.heartbeat_details[1:], info.attempt - 1))
    repeated = info.retry_policy is None or info.retry_policy.maximum_attempts != info.attempt
    if clean and outcome.kind == "failed" and outcome.retryable and repeated and not info.is_local:
        activity.heartbeat(raw_json(None), raw_json(_signed_note(info.attempt)))
    return replace(outcome, nothing_before=clean and info.attempt > 1)


def _signed_note(attempts: int) -> dict[str, Any]:
    note, keys = {_WITHOUT_EFFECT: attempts}, note_keys.get()
    return note if keys is None else {**note, "signature": keys.sign(note)}


def _is_noted(details: Sequence[Any], attempts: int) -> bool:
    """True if the heartbeat of an earlier attempt says that this many have had no effect, and is a worker's."""
    note, keys = {_WITHOUT_EFFECT: attempts}, note_keys.get()
    if keys is None:
        return list(details) == [note]
    if len(details) != 1 or not isinstance(details[0], dict):
        return False
    return details[0].get(_WITHOUT_EFFECT) == attempts and keys.verifies(note, details[0].get("signature"))


async def attempt_context(saga: str, clock: ServerClock) -> AttemptContext:
    info = activity.info()
    timeout = info.start_to_close_timeout or DEFAULT_TIMEOUT
    return AttemptContext(
        number=attempt_number(info),
        scheduled_at=info.current_attempt_scheduled_time.timestamp(),
        deadline=await clock.deadline(info, timeout.total_seconds()),
        heartbeat=_no_heartbeat if info.is_local else _heartbeat(),
        logger=activity.logger,
        saga=saga,
        task_token=b"" if info.is_local else info.task_token,
        run_id=info.workflow_run_id or "",
    )


def _heartbeat() -> Callable[[Any], None]:
    """A heartbeat function that also works from the thread of a plain `def` action."""
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()

    def beat(details: Any = None) -> None:
        values = () if details is None else (raw_json(details),)
        loop.call_soon_threadsafe(lambda: context.run(activity.heartbeat, *values))

    return beat


def _no_heartbeat(_: Any = None) -> None:
    """A local activity has none: the SDK would take the server's refusal for a cancel."""


def must_end() -> bool:
    """Return whether the worker stops or the attempt has timed out.

    The saga's own cancellation is ignored, as by an attempt without heartbeats, which never receives it.
    """
    why = activity.cancellation_details()
    return why is None or not why.cancel_requested
