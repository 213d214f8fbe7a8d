"""The wire format of bulk execution between workflow and workers (JSON).

A bulk workflow runs many sagas of one definition. Its activities claim their ids, perform equal calls of several sagas
as one chunk, give sagas a workflow of their own, and record final states.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sagas.bulk.bulk_machine import ChunkCall
from sagas.protocol.compression import compress, decompress
from sagas.protocol.messages import Call
from sagas.protocol.origin import Origin, encode_origin, with_ledger
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import (
    Invocation,
    decode_failure,
    decode_guard,
    encode_failure,
    encode_guard,
    idempotency_key,
)
from sagas.text.exact_json import decode_json, encode_json

_OWN_IN_GUARD = ("known_done", "confirmed", "forward_hash", "room")
"""The fields of the guard's part in which the calls of a chunk may differ."""


def encode_chunk(calls: Sequence[ChunkCall], saga: str) -> dict[str, Any]:
    """The argument of the chunk's activity: what the calls have in common, and an item for each.

    An item is ``[saga id, arguments]``, without the arguments that all have in common, and a mapping of what differs
    from the defaults, if anything does.
    """
    first = calls[0].call
    guard = first.guard
    assert guard is not None
    shared = _shared_arguments([call.call.arguments for call in calls])
    return {
        "saga": saga,
        "action": first.action,
        "entry": first.entry,
        "op": first.op,
        "timeout": first.timeout,
        "guard": encode_guard(replace(guard, known_done=False, confirmed=None, forward_hash=None)),
        **({"reads": True} if first.refuses_writes else {}),
        **({"own_retry": True} if first.own_retry else {}),
        **_shared_origin(calls),
        "arguments": shared,
        "items": [_encode_item(call, first, shared) for call in calls],
    }


def _shared_origin(calls: Sequence[ChunkCall]) -> dict[str, Any]:
    """The definition and the variables of the sagas, which all origins of a chunk have in common."""
    origin = next((call.origin for call in calls if call.origin is not None and call.origin.is_whole), None)
    return {} if origin is None else {"origin": {"digest": origin.digest, "vars": origin.variables}}


def _shared_arguments(all_arguments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Texts that every call has, such as its statement."""
    return {
        name: value
        for name, value in all_arguments[0].items()
        if isinstance(value, str) and all(argument.get(name) == value for argument in all_arguments)
    }


def _encode_item(item: ChunkCall, first: Call, shared: Mapping[str, Any]) -> list[Any]:
    call = item.call
    guard = call.guard
    assert guard is not None
    differences: dict[str, Any] = {}
    if call.entry != first.entry:
        differences["entry"] = call.entry
    if call.generation != 1:
        differences["generation"] = call.generation
    if call.key != _default_key(item.saga_id, call.entry, call.generation, call.op):
        differences["key"] = call.key
    earlier = call.earlier_attempts + item.earlier_attempts
    if earlier:
        differences["earlier_attempts"] = earlier
    if guard.known_done:
        differences["known_done"] = True
    if guard.forward_hash is not None:
        differences["forward_hash"] = guard.forward_hash
    if first.guard is not None and guard.room != first.guard.room:
        differences["room"] = guard.room
    if guard.confirmed is not None:
        differences["confirmed"] = encode_guard(guard)["confirmed"]
    if call.sensitive_texts:
        differences["sensitive_texts"] = call.sensitive_texts
    if (origin := item.origin) is not None and not origin.is_whole:
        differences["start"] = [origin.input_digest, origin.started_at, origin.generation]
    elif origin is not None:
        own = (origin.input_digest, origin.started_at, origin.generation)
        differences["origin"] = [*own, origin.input] if origin.has_input else [*own]
    head = [item.saga_id, {name: value for name, value in call.arguments.items() if name not in shared}]
    return [*head, differences] if differences else head


def decode_chunk(request: Mapping[str, Any], ledger: str = "") -> list[Invocation]:
    """The calls of a chunk. ``ledger``: see :class:`sagas.protocol.origin.Origin`.

    Raises KeyError, TypeError, ValueError or AttributeError if it is malformed.
    """
    common, op = request["guard"], request["op"]
    shared = decode_guard(common)
    invocations = []
    for saga_id, arguments, *more in request["items"]:
        differences = more[0] if more else {}
        generation, entry = differences.get("generation", 1), differences.get("entry", request["entry"])
        own = {name: differences[name] for name in _OWN_IN_GUARD if name in differences}
        invocations.append(
            Invocation(
                action=request["action"],
                arguments=request["arguments"] | arguments,
                key=differences.get("key") or _default_key(saga_id, entry, generation, op),
                saga_id=saga_id,
                entry=entry,
                op=op,
                generation=generation,
                timeout=float(request["timeout"]),
                guard=decode_guard({**common, **own}) if own else shared,
                earlier_attempts=differences.get("earlier_attempts", 0),
                reads=request.get("reads", False),
                own_retry=request.get("own_retry", False),
                sensitive_texts=tuple(differences.get("sensitive_texts", ())),
                origin=with_ledger(_encoded_origin(request, differences), ledger),
                saga=request["saga"],
            )
        )
    return invocations


def _encoded_origin(request: Mapping[str, Any], differences: Mapping[str, Any]) -> str | None:
    """The origin of a saga, encoded as the guard stores it: its own part, and the part of all sagas of the chunk."""
    if "start" in differences:
        input_digest, started_at, generation = differences["start"]
        return encode_origin(Origin(request["saga"], "", input_digest, started_at, generation))
    if "origin" not in differences:
        return None
    input_digest, started_at, generation, *input = differences["origin"]
    shared = request["origin"]
    return encode_origin(
        Origin(
            request["saga"],
            shared["digest"],
            input_digest,
            started_at,
            generation,
            input[0] if input else None,
            bool(input),
            shared["vars"],
        )
    )


def _default_key(saga_id: str, entry: str, generation: int, op: str) -> str:
    return idempotency_key(saga_id, entry, generation, op if op in ("undo", "confirm") else "")  # pyright: ignore[reportArgumentType]


def encode_outcomes(outcomes: Sequence[Outcome | None], attempt: int) -> dict[str, Any]:
    """The result of a chunk: the number of the attempt, and an outcome for each item.

    null: it was not attempted; 0: done without a result; 1: done with an empty list, as a statement without rows is.
    """
    return {
        "attempt": attempt,
        "outcomes": [None if outcome is None else _encode_outcome(outcome, attempt) for outcome in outcomes],
    }


def _encode_outcome(outcome: Outcome, attempt: int) -> Any:
    if outcome.kind != "done":
        failure = outcome.failure or Failure("Unknown", "no reason was given")
        return {"type": failure.type, "message": failure.message, **encode_failure(outcome, attempt)}
    if outcome.marker is not None:
        return {"result": outcome.result, "marker": outcome.marker}
    if outcome.result is None:
        return 0
    return 1 if outcome.result == [] else {"result": outcome.result}


def decode_outcomes(result: Mapping[str, Any], count: int) -> list[Outcome | None]:
    """The reverse of :func:`encode_outcomes`. Raises ValueError, KeyError or TypeError if it is malformed."""
    if len(result["outcomes"]) != count:
        raise ValueError(f"{len(result['outcomes'])} outcomes for {count} calls")
    attempt = int(result["attempt"])
    return [None if outcome is None else _decode_outcome(outcome, attempt) for outcome in result["outcomes"]]


def _decode_outcome(data: Any, attempt: int) -> Outcome:
    if data in (0, 1):
        return Outcome.done([] if data else None, attempt=attempt)
    if "outcome" not in data:
        return Outcome.done(data.get("result"), attempt=attempt, marker=data.get("marker"))
    return replace(decode_failure(data["type"], data["message"], data), attempt=attempt)


def encode_state(summary: Mapping[str, Any], machine: Mapping[str, Any] | None) -> str:
    """One line: the summary of a saga, and the compact snapshot of its machine, if it is not too large.

    Without a machine the summary has the ``view`` of the saga, which tells why it is not there.
    """
    return f"{encode_json(summary).decode()}\t{'' if machine is None else encode_json(machine).decode()}"


def state_summary(line: str) -> dict[str, Any]:
    """The summary in a line of :func:`encode_state`."""
    return decode_json(line.partition("\t")[0])


def pack_states(lines: Sequence[str]) -> str:
    """Compress the states of several sagas; together they take a fraction of their separate sizes."""
    return base64.b64encode(compress("\n".join(lines).encode(), 1)).decode()


def unpack_states(packed: str) -> list[tuple[dict[str, Any], str]]:
    """The summary of each saga, and its machine as JSON text, which may be empty. Raises ValueError if malformed."""
    lines = decompress(base64.b64decode(packed)).decode().split("\n")
    states = []
    for line in lines:
        summary, _, machine = line.partition("\t")
        states.append((decode_json(summary), machine))
    return states
