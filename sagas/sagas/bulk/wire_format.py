"""The wire format of bulk execution between workflow and workers (JSON), and its names.

A bulk workflow runs many sagas of one definition. Its activities claim their ids, perform equal calls of several sagas
as one chunk, give sagas a workflow of their own, and record final states.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sagas.bulk.bulk_machine import ChunkCall
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import (
    Invocation,
    decode_failure,
    decode_guard,
    encode_failure,
    encode_guard,
    idempotency_key,
)

CLAIM_ACTIVITY = "saga.claim"
CHUNK_ACTIVITY = "saga.chunk"
DETACH_ACTIVITY = "saga.detach"
RECORD_ACTIVITY = "saga.record"
BULK_ACTIVITIES = (CLAIM_ACTIVITY, CHUNK_ACTIVITY, DETACH_ACTIVITY, RECORD_ACTIVITY)

DETACH_UPDATE = "detach"

MAX_MEMBERS = 2_000
"""Sagas of one bulk workflow: a workflow task with more would come near Temporal's limit of two seconds."""


# --- chunks ----------------------------------------------------------------------------------------------------------


def encode_chunk(calls: Sequence[ChunkCall], saga: str) -> dict[str, Any]:
    """The argument of the chunk's activity: what the calls have in common, and an item for each.

    An item is ``[saga id, ledger id, arguments]``, and a mapping of what differs from the defaults, if anything does.
    """
    first = calls[0].call
    guard = first.guard
    assert guard is not None
    return {
        "saga": saga,
        "action": first.action,
        "op": first.op,
        "timeout": first.timeout,
        "guard": encode_guard(replace(guard, known_done=False, confirmed=None)),
        **({"reads": True} if first.reads else {}),
        "items": [_encode_item(one) for one in calls],
    }


def _encode_item(item: ChunkCall) -> list[Any]:
    call = item.call
    guard = call.guard
    assert guard is not None
    rest: dict[str, Any] = {}
    if call.generation != 1:
        rest["generation"] = call.generation
    if call.key != _default_key(item.saga_id, call.entry, call.generation, call.op):
        rest["key"] = call.key
    earlier = call.earlier_attempts + item.earlier_attempts
    if earlier:
        rest["earlier_attempts"] = earlier
    own = {name: value for name, value in encode_guard(guard).items() if name in ("known_done", "confirmed")}
    if own:
        rest["guard"] = own
    head = [item.saga_id, call.entry, dict(call.arguments)]
    return [*head, rest] if rest else head


def decode_chunk(request: Mapping[str, Any]) -> list[Invocation]:
    """The calls of a chunk. Raises KeyError, TypeError, ValueError or AttributeError if it is malformed."""
    common = request["guard"]
    shared = decode_guard(common)
    invocations = []
    for saga_id, entry, arguments, *more in request["items"]:
        rest = more[0] if more else {}
        generation = rest.get("generation", 1)
        own = rest.get("guard")
        invocations.append(
            Invocation(
                action=request["action"],
                arguments=arguments,
                key=rest.get("key") or _default_key(saga_id, entry, generation, request["op"]),
                saga_id=saga_id,
                entry=entry,
                op=request["op"],
                generation=generation,
                timeout=request["timeout"],
                guard=shared if own is None else decode_guard({**common, **own}),
                earlier_attempts=rest.get("earlier_attempts", 0),
                reads=request.get("reads", False),
                saga=request["saga"],
            )
        )
    return invocations


def _default_key(saga_id: str, entry: str, generation: int, op: str) -> str:
    return idempotency_key(saga_id, entry, generation, op if op in ("undo", "confirm") else "")  # pyright: ignore[reportArgumentType]


def encode_outcomes(outcomes: Sequence[Outcome | None], attempt: int) -> dict[str, Any]:
    """The result of a chunk: the number of the attempt, and an outcome for each item, null for one not attempted."""
    return {
        "attempt": attempt,
        "outcomes": [None if one is None else _encode_outcome(one, attempt) for one in outcomes],
    }


def _encode_outcome(outcome: Outcome, attempt: int) -> dict[str, Any]:
    if outcome.kind != "done":
        failure = outcome.failure or Failure("Unknown", "no reason was given")
        data = {"type": failure.type, "message": failure.message, **encode_failure(outcome, attempt)}
        return data if outcome.retry_after is None else {**data, "retry_after": outcome.retry_after}
    data = {} if outcome.result is None else {"result": outcome.result}
    return data if outcome.marker is None else {**data, "marker": outcome.marker}


def decode_outcomes(result: Mapping[str, Any], count: int) -> list[Outcome | None]:
    """The reverse of :func:`encode_outcomes`. Raises ValueError, KeyError or TypeError if it is malformed."""
    if len(result["outcomes"]) != count:
        raise ValueError(f"{len(result['outcomes'])} outcomes for {count} calls")
    attempt = int(result["attempt"])
    return [None if one is None else _decode_outcome(one, attempt) for one in result["outcomes"]]


def _decode_outcome(data: Mapping[str, Any], attempt: int) -> Outcome:
    if "outcome" not in data:
        return Outcome.done(data.get("result"), attempt=attempt, marker=data.get("marker"))
    decoded = decode_failure(data["type"], data["message"], data)
    return replace(decoded, attempt=attempt, retry_after=data.get("retry_after"))


# --- states of machines ----------------------------------------------------------------------------------------------


def pack_states(states: Sequence[Mapping[str, Any]]) -> str:
    """Compress what is written of several sagas; together they take a fraction of their separate sizes."""
    return base64.b85encode(zlib.compress(json.dumps(states).encode(), 1)).decode()


def unpack_states(packed: str) -> list[dict[str, Any]]:
    """The reverse of :func:`pack_states`."""
    return json.loads(zlib.decompress(base64.b85decode(packed)))


def without_definition(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A machine's snapshot without the definition, which the sagas of a bulk workflow share."""
    return {name: value for name, value in snapshot.items() if name != "definition"}
