"""The wire format of calls and their results between workflow and workers (JSON), and the names of keys and ids.

Every participant receives one JSON object: the arguments of ``with`` and, under ``_saga``, the envelope of the call.
Its fields ``key, forward_key, saga_id, step, op, generation`` are a public contract for workers in any language; the
other fields are for the workers of this project.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from sagas.actions.envelope import ENVELOPE
from sagas.definition.saga_ids import UNDO_SUFFIX as UNDO_SUFFIX
from sagas.input_limits import MAX_RETRY_DELAY
from sagas.protocol.compression import compress, decompress
from sagas.protocol.outcomes import Failure, Marker, Outcome
from sagas.protocol.redelivery_names import (
    REDELIVER_ACTIVITY,
    REDELIVERY_HEADER,
    REDELIVERY_PREFIX,
    REDELIVERY_WORKFLOW,
)
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS, MAX_TYPE_CHARACTERS
from sagas.protocol.standing_pause import StandingPause
from sagas.text.digests import sha256_hex
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.exact_numbers import comparable_json
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten, shorten_middle

if TYPE_CHECKING:
    from sagas.protocol.messages import Call, GuardSpec

T = TypeVar("T", str, bool)

REJECTED_TYPE = "Rejected"
ALREADY_COMPENSATED_TYPE = "AlreadyCompensated"
RECORD_RESULT = "saga.done"
"""The action that records an operator's `done` in the guard's row of the operation; an existing row wins."""

SKIP_RESTORE = "saga.skip"
"""The action that records the `skip` of an automatic undo: its rows stay, and no other undo relies on it."""

CLOSE_NESTED = "saga.close"
"""The action that records the decision about the undo of a nested saga: no other undo relies on its row images."""

REFUSED_TYPE = "SagaRefused"
"""The failure of a refused start, message or call: nothing was run or changed. `Rejected` comes from a participant."""
UNSIGNED_TYPE = "UnsignedCall"
"""The failure of a call that no key of its worker has signed. Another worker may have the key."""
NOT_REGISTERED_TYPES = frozenset({"NotFoundError", "ActivityNotRegisteredError", UNSIGNED_TYPE})

DEFINITION_HEADER = "saga-definition"
SIGNATURE_HEADER = "saga-signature"
CALL_HEADER = "saga-call"
"""Header of a call to an activity: the id of the key, the signature, the run and its seed, with blanks between."""
ANSWER_METADATA = "saga-signature"
"""Metadata of the answer of an engine's activity: the id of the key and the signature, with a blank between."""
GENERATION_HEADER = "saga-generation"
RESUMED_HEADER = "saga-resumed"
"""Header of a run that `saga resume` starts after the run of the saga was deleted: when the saga was started
(``started_at``), the generations that its entries had (``generations``, by entry id), ``who`` did it, and the
``reason``."""
EARLIER_HEADERS = (GENERATION_HEADER, RESUMED_HEADER, REDELIVERY_HEADER)
"""The headers in which a start says anything of earlier or later runs of its saga: they count only with a signature."""
OWNER_HEADER = "saga-owner"
"""Header of a run that `saga undo` or `saga notify --again` starts for a saga: the saga's id."""
VIEW_QUERY = "saga"
"""The query of a run for its view; of a bulk workflow, with the id of one of its sagas. With a random text of the
reader the answer is signed."""
MACHINE_QUERY = "machine"
"""The query for the packed state of a saga's machine; of a bulk workflow, with the id of one of its sagas."""
BULK_WORKFLOW = "saga.bulk"
"""The workflow type of bulk execution; not a valid saga name."""
BULK_PREFIX = "bulk~"
"""Prefix of the ids of bulk workflows; no saga id contains a tilde."""
BATCH_WORKFLOW = "saga.batch"
"""The workflow type of the record of a batch; not a valid saga name."""
BATCH_PREFIX = "batch~"
"""Prefix of the ids of the records of batches, which follows."""
SCHEDULE_WORKFLOW = "saga.schedule"
"""The workflow type of a scheduled start, one run for each time; not a valid saga name."""
SCHEDULE_PREFIX = "schedule~"
"""Prefix of the ids of schedules and of their runs; the task queue and the name of the saga follow."""
NOTIFICATION_WORKFLOW = "saga.notify"
"""The workflow type of notifications; not a valid saga name."""
ENGINE_WORKFLOWS = (BATCH_WORKFLOW, BULK_WORKFLOW, NOTIFICATION_WORKFLOW, REDELIVERY_WORKFLOW, SCHEDULE_WORKFLOW)
"""The workflow types of the engine; every other one that it runs is the name of a saga."""
OUTCOME_MEMO = "saga"
OUTCOME_SIGNATURE_MEMO = "saga-signature"
"""Memo field of a run of a saga that has ended: its last view. No start may bring it."""
NOTIFICATION_MEMO = "notification"
"""Memo field of a notification: its delivery status."""
LOAD_ACTIVITY = "saga.load"
VERIFY_ACTIVITY = "saga.verify"
SLOT_MEMO = "saga-id"
"""Memo field of a scheduled start: the id of its saga."""
SLOT_ACTIVITY = "saga.slot"
"""The activity of a scheduled start that starts the saga of one time, or finds it."""
SLOT_STATE_ACTIVITY = "saga.slot-state"
"""The activity of a scheduled start that asks whether its saga has ended."""
SLOT_CANCEL_ACTIVITY = "saga.slot-cancel"
"""The activity of a scheduled start that was cancelled: it cancels its saga."""
START_ACTIVITIES = (SLOT_ACTIVITY, SLOT_STATE_ACTIVITY, SLOT_CANCEL_ACTIVITY, REDELIVER_ACTIVITY)
"""The activities that start sagas of the project, and look after them."""
RESET_ACTIVITY = "saga.reset"
"""The activity of a run that Temporal's reset has made: it asks what the saga had done, or undone, before."""
NESTED_ACTIVITY = "saga.nested"
"""The activity of a run whose nested saga may have been started before, by another run or attempt: it asks how that
has ended.
"""
DETACHED_HEADER = "saga-detached"
"""Header of a run that goes on with a saga of a bulk workflow: the signature of its input."""
BULK_MEMO = "saga-bulk"
"""Memo field of the same run: the id of the bulk workflow that the saga has left."""
LOCK_ACTIVITY = "saga.lock"
RELEASE_ACTIVITY = "saga.release"
UNDO_SCOPE_MEMO = "saga-undo-scope"
"""Memo field of a nested saga, from its parent: see :class:`sagas.protocol.messages.StartSaga`."""
ROOT_START_MEMO = "saga-root-start"
"""Memo field of a nested saga and of its undo, from the parent: what tells their root saga from others with its id, see
:func:`sagas.protocol.origin.start_of`.
"""
SENSITIVE_MEMO = "saga-sensitive"
"""Memo field of a nested saga, from its parent: the places of its input that are sensitive, see
:class:`sagas.protocol.messages.StartSaga`. It only masks more, so it needs no signature.
"""
REPEATS_MEMO = "saga-repeats"
"""Memo field of a nested saga, from its parent: an earlier run of it may have made its calls. It only makes the run
more careful, so it needs no signature.
"""
CANCELLED_MEMO = "saga-cancelled"
"""Memo field of a nested saga that is started again only to be undone: the reason. Anybody may cancel a saga, so it
needs no signature.
"""
STARTED_AT_MEMO = "saga-started-at"
"""Memo field of a continued run: start time of the saga in seconds since the epoch."""
PAUSE_MEMO = "saga-paused"
"""Memo field of a run that is held back: its pause, as in the view. No start may bring it."""
EVENT_MEMO = "saga-event"
"""Memo field of a run that an event of Kafka or an enqueued row has started: a digest by which that is known again."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call as the worker receives it. ``timeout`` is in seconds; ``intervals`` are the delays before attempt 2, 3 …

    ``remembers_rejections``: a rejection holds for all attempts of the key.
    ``returns_failure``: a first attempt that certainly had no effect ends the call.
    ``beats``: the worker itself sends heartbeats, which prove only that it is alive.
    ``reads``: the database must refuse every write of the action.
    ``own_retry``: the author has written its `retry`, which then applies to every failure.
    ``sensitive_texts``: texts that no message may quote.
    ``origin``: JSON that the guard stores with the effect, see :mod:`sagas.protocol.origin`.
    ``saga`` is the saga's name where it differs from the workflow type, as in notifications.
    """

    action: str
    arguments: Mapping[str, Any]
    key: str
    saga_id: str
    entry: str
    op: str
    generation: int
    timeout: float = 30.0
    guard: GuardSpec | None = None
    earlier_attempts: int = 0
    at_most_once: bool = False
    returns_failure: bool = False
    remembers_rejections: bool = False
    ignores_cancel: bool = False
    beats: bool = False
    reads: bool = False
    own_retry: bool = False
    intervals: tuple[float, ...] = ()
    sensitive_texts: tuple[str, ...] = ()
    origin: str | None = None
    saga: str = ""

    @property
    def forward_key(self) -> str:
        """The key of the forward operation, also for an undo or a confirm, whose own key differs."""
        return idempotency_key(self.saga_id, self.entry, self.generation)


def encode_call(call: Call, saga_id: str, *, beats: bool = False) -> dict[str, Any]:
    """The single JSON argument of the activity. ``beats``: the worker itself sends heartbeats for the attempt."""
    envelope: dict[str, Any] = {
        "key": call.key,
        "forward_key": idempotency_key(saga_id, call.entry, call.generation),
        "saga_id": saga_id,
        "step": call.entry,
        "op": call.op,
        "generation": call.generation,
    }
    if call.local:
        envelope["timeout"] = call.timeout
        if call.guard is not None:
            envelope["guard"] = encode_guard(call.guard)
        if call.earlier_attempts:
            envelope["earlier_attempts"] = call.earlier_attempts
        if call.at_most_once:
            envelope["at_most_once"] = True
        if call.returns_failure:
            envelope["returns_failure"] = True
        if call.remembers_rejections:
            envelope["remembers_rejections"] = True
        if not call.cancellable:
            envelope["deaf"] = True
        if beats:
            envelope["beats"] = True
        if call.refuses_writes:
            envelope["reads"] = True
        if call.own_retry:
            envelope["own_retry"] = True
        if call.sensitive_texts:
            envelope["sensitive_texts"] = list(call.sensitive_texts)
        if call.retry.intervals:
            envelope["intervals"] = list(call.retry.intervals)
    return {**call.arguments, ENVELOPE: envelope}


def is_local_call(argument: Mapping[str, Any]) -> bool:
    """True for a call to a worker of the project, False for one to a worker in another language."""
    return "timeout" in argument[ENVELOPE]


def decode_call(action: str, argument: Mapping[str, Any]) -> Invocation:
    """The reverse of :func:`encode_call`. Raises KeyError when the envelope is missing."""
    envelope = argument[ENVELOPE]
    guard = envelope.get("guard")
    return Invocation(
        action=action,
        arguments={name: value for name, value in argument.items() if name != ENVELOPE},
        key=envelope["key"],
        saga_id=envelope["saga_id"],
        entry=envelope["step"],
        op=envelope["op"],
        generation=envelope["generation"],
        timeout=float(envelope.get("timeout", 30.0)),
        guard=None if guard is None else decode_guard(guard),
        earlier_attempts=envelope.get("earlier_attempts", 0),
        at_most_once=envelope.get("at_most_once", False),
        returns_failure=envelope.get("returns_failure", False),
        remembers_rejections=envelope.get("remembers_rejections", False),
        ignores_cancel=envelope.get("deaf", False),
        beats=envelope.get("beats", False),
        reads=envelope.get("reads", False),
        own_retry=envelope.get("own_retry", False),
        intervals=tuple(map(float, envelope.get("intervals", ()))),
        sensitive_texts=tuple(envelope.get("sensitive_texts", ())),
        origin=envelope.get("origin"),
        saga=envelope.get("saga", ""),
    )


def encode_guard(guard: GuardSpec) -> dict[str, Any]:
    """The guard's part of a call's envelope."""
    data: dict[str, Any] = {"connection": guard.connection}
    if guard.mode != "decide":
        data["mode"] = guard.mode
    if guard.known_done:
        data["known_done"] = True
    if guard.confirmed == "elsewhere":
        data["confirmed"] = "elsewhere"
    elif guard.confirmed is not None:
        data["confirmed"] = {"uses": guard.confirmed[0], "with": dict(guard.confirmed[1])}
    if guard.holds is not None:
        data["holds"] = guard.holds
    if guard.images:
        data["images"] = True
    if guard.two_phase:
        data["two_phase"] = True
    if guard.undo_scope:
        data["undo_scope"] = guard.undo_scope
    if guard.undone_steps is not None:
        data["undone_steps"] = list(guard.undone_steps)
    if guard.forward_hash is not None:
        data["forward_hash"] = guard.forward_hash
    if guard.room is not None:
        data["room"] = guard.room
    return data


def decode_guard(data: Mapping[str, Any]) -> GuardSpec:
    """The reverse of :func:`encode_guard`."""
    from sagas.protocol.messages import GuardSpec  # imported here because clients need only the names of this module

    confirmed, undone_steps = data.get("confirmed"), data.get("undone_steps")
    return GuardSpec(
        connection=data["connection"],
        mode=data.get("mode", "decide"),
        known_done=data.get("known_done", False),
        confirmed=(confirmed["uses"], confirmed["with"]) if isinstance(confirmed, dict) else confirmed,
        holds=data.get("holds"),
        images=data.get("images", False),
        two_phase=data.get("two_phase", False),
        undo_scope=data.get("undo_scope", ""),
        undone_steps=None if undone_steps is None else tuple(undone_steps),
        forward_hash=data.get("forward_hash"),
        room=data.get("room"),
    )


def encode_result(outcome: Outcome, attempt: int) -> dict[str, Any]:
    """The return value of this project's activities: the result and, under ``_saga``, the number of its attempt."""
    envelope: dict[str, Any] = {"attempt": attempt}
    if outcome.marker is not None:
        envelope["marker"] = outcome.marker
    if outcome.repeats:
        envelope["repeats"] = outcome.repeats
    return {"result": outcome.result, ENVELOPE: envelope}


def decode_result(value: Any) -> Outcome:
    """Decode a returned value: with an envelope from this project's workers, without one from other workers.

    A worker in another language may return its argument, whose envelope is that of the call.
    """
    envelope = value.get(ENVELOPE) if isinstance(value, dict) else None
    attempt = _count(envelope.get("attempt")) if isinstance(envelope, dict) else None
    if envelope is None or attempt is None:
        return Outcome.done(value, attempt=None)
    repeats = _count(envelope.get("repeats")) or 0
    return Outcome("done", value.get("result"), attempt=attempt, marker=_marker(envelope), repeats=repeats)


def _count(value: Any) -> int | None:
    """The number in a field that any worker may fill; None if it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _retry_delay(value: Any) -> float | None:
    """The seconds until the next attempt in a field that any worker may fill; None if they are none."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return float(min(value, MAX_RETRY_DELAY)) if is_number and value >= 0 else None


def encode_failure(outcome: Outcome, attempt: int) -> dict[str, Any]:
    """The first failure detail of this project's activities."""
    failure = outcome.failure or Failure("Unknown", "no reason was given")
    data: dict[str, Any] = {"outcome": outcome.kind, "attempt": attempt, "details": dict(failure.details)}
    if failure.quotes:
        data["quotes"] = True
    if outcome.nothing_before:
        data["nothing_before"] = True
    if outcome.infrastructure:
        data["infrastructure"] = True
    if not outcome.counted:
        data["counted"] = False
    if outcome.breaker is not None:
        data["breaker"] = outcome.breaker.to_json()
    if not outcome.retryable:
        data["retryable"] = False
    if outcome.park_reason is not None:
        data["parks"] = outcome.park_reason
    if outcome.marker is not None:
        data["marker"] = outcome.marker
    if outcome.repeats:
        data["repeats"] = outcome.repeats
    if outcome.retry_after is not None:
        data["retry_after"] = outcome.retry_after
    return data


def decode_failure(type: str | None, message: str, details: Any) -> Outcome:
    """Decode a failure from its type and first detail, raised by a worker of this project or by another one."""
    attempt = _count(details.get("attempt")) if isinstance(details, dict) else None
    ours = None if attempt is None else details
    repeats = (_count(ours.get("repeats")) or 0) if ours else 0
    retry_after = _retry_delay(ours.get("retry_after")) if ours else None
    clean = ours is not None and _typed(ours, "nothing_before", False)
    if ours is None or "details" not in ours:
        inner = details if ours is None else {name: value for name, value in ours.items() if name != "attempt"}
    else:
        inner = ours["details"]
    shown = inner if isinstance(inner, dict) else ({} if inner is None else {"details": inner})
    name = printable_line(shorten(type or "Error", MAX_TYPE_CHARACTERS))
    quotes = ours is not None and _typed(ours, "quotes", False)
    failure = Failure(name, shorten_middle(message, MAX_MESSAGE_CHARACTERS), shown, quotes)
    if type == REJECTED_TYPE:
        return Outcome(
            "rejected",
            failure=failure,
            attempt=attempt,
            nothing_before=clean,
            retryable=False,
            repeats=repeats,
            retry_after=retry_after,
        )
    if type == ALREADY_COMPENSATED_TYPE:
        return Outcome("late", failure=failure, attempt=attempt, retryable=False, repeats=repeats)
    if type in NOT_REGISTERED_TYPES and (attempt is None or attempt <= 1):
        return Outcome("failed", failure=failure, attempt=attempt, not_started=True)
    if ours is None:
        return Outcome("unknown", failure=failure)
    parks = _typed(ours, "parks", "")
    return Outcome(
        "failed" if ours.get("outcome") == "failed" else "unknown",
        failure=failure,
        attempt=attempt,
        nothing_before=clean,
        marker=_marker(ours),
        retryable=_typed(ours, "retryable", True),
        infrastructure=_typed(ours, "infrastructure", False),
        counted=_typed(ours, "counted", True),
        breaker=StandingPause.from_json(ours["breaker"]) if isinstance(ours.get("breaker"), dict) else None,
        park_reason=shorten_middle(parks, MAX_MESSAGE_CHARACTERS) or None,
        repeats=repeats,
        retry_after=retry_after,
    )


def _marker(details: Mapping[str, Any]) -> Marker | None:
    """The marker in a field that any worker may fill; None if it is none of those that a guard or a probe adds."""
    return next((marker for marker in get_args(Marker) if marker == details.get("marker")), None)


def _typed(details: Mapping[str, Any], name: str, default: T) -> T:
    """The value of a field that any worker may fill; the default if it is of another type."""
    value = details.get(name)
    return cast(T, value) if type(value) is type(default) else default


def pack_state(state: Mapping[str, Any]) -> str:
    """Compress a machine's snapshot to a string."""
    return to_packed_text(compress_state(state))


def compress_state(state: Mapping[str, Any]) -> bytes:
    """Compress a machine's snapshot."""
    return compress(encode_json(state), 6)


def decompress_state(compressed: bytes) -> dict[str, Any]:
    """The reverse of :func:`compress_state`."""
    return decode_json(decompress(compressed))


def to_packed_text(compressed: bytes) -> str:
    """The string that :func:`pack_state` returns: Base85, because Base64 would add a third to the payload."""
    return base64.b85encode(compressed).decode()


def unpack_state(packed: str) -> dict[str, Any]:
    """The reverse of :func:`pack_state`."""
    return decompress_state(base64.b85decode(packed))


def arguments_hash(arguments: Mapping[str, Any]) -> str:
    """The digest of a call's arguments, the same for equal JSON; the guard stores it in the ``do`` row."""
    return input_digest(arguments)


def input_digest(input: Any) -> str:
    """SHA-256 of the canonical JSON of an input, the same for numbers that are equal, such as 1, 1.0 and 1.00."""
    return sha256_hex(comparable_json(input))


KeySuffix = Literal["", "undo", "confirm"]

NOTIFICATION_PREFIX = "notify-"
"""Prefix of notification ids, and so of their keys and guard rows; not a valid prefix of step ids."""


def entry_id(step: str, index: int | None) -> str:
    """The entry id: the step's id, with the item's index for a for_each."""
    return step if index is None else f"{step}#{index}"


def idempotency_key(saga_id: str, entry: str, generation: int, suffix: KeySuffix = "", alternate: int = 0) -> str:
    """The idempotency key that a participant receives. It identifies the operation, independent of run and attempt."""
    key = f"{saga_id}/{entry}"
    if generation > 1:
        key += f"@{generation}"
    if suffix:
        key += f"/{suffix}"
    if alternate:
        key += f".{alternate}"
    return key


def notification_workflow_id(saga_id: str, notification: str, generation: int) -> str:
    """The workflow id of the run that delivers a notification; each generation of the saga has its own."""
    run = f"{saga_id}~{notification}"
    return f"{run}@{generation}" if generation > 1 else run


def second_workflow_id(workflow_id: str) -> str:
    """The workflow id of a notification or a redelivery if a run of somebody else has the first one."""
    return f"{workflow_id}.2"


def is_delivery_id(workflow_id: str) -> bool:
    """True for the workflow id of a notification or a redelivery; no saga id contains a tilde."""
    return workflow_id.partition("~")[2].startswith((NOTIFICATION_PREFIX, REDELIVERY_PREFIX))
