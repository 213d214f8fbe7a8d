"""Payloads of JSON with exact numbers, whatever data converter the client or the worker has.

The converter of the SDK reads the numbers of JSON as binary floats and cannot write a decimal, and a user's own worker
may have another one. So no value of a saga passes through a converter: what is sent is a RawValue, and what is received
is read from one.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from sagas.input_limits import MAX_INPUT_VALUES, MAX_JSON_DEPTH, MAX_RESULT_VALUES
from sagas.text.exact_json import decode_json, decode_unambiguous, encode_json
from sagas.text.json_mistakes import InvalidJson
from sagas.text.json_values import encodable, has_more_values, json_problem
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten
from sagas.workflow.run_trust import KeyMissing

ENVELOPE_VALUES = 1_000
"""Values around those of a result or of the details of a failure, such as the number of the attempt."""

JSON_ENCODING = b"json/plain"
_NULL = b"binary/null"

UNENCRYPTED = "saga-unencrypted"
"""The key in the metadata of a payload that the codec of this process leaves in clear."""

MISSING_KEY_ENCODING = f"saga/missing-key/{secrets.token_hex(16)}".encode()
"""The encoding of a payload that this worker cannot decrypt; its data is the id of the key that it names.

Only the codec of this process knows it: a payload that a client has sent in such an encoding is just unreadable.
"""


NO_INPUT = RawValue(Payload())
"""The argument of a workflow that a client has started without one; it cannot be read."""


SEVERAL_VALUES = Payload(metadata={"encoding": b"saga/several-values"})
"""Stands for several arguments where one is expected; it cannot be read."""


KEY_IS_MISSING = "which [codec] key of this worker does not have"
"""The part of a message by which it is known."""


class UnreadableValue(Exception):
    """A value of another client that this worker cannot decode. Decoding it again would fail each time."""


def missing_value_key(payload: Payload) -> str | None:
    """The id of the key that this worker lacks for a payload; None if it lacks none. Any client may invent a key."""
    is_missing = payload.metadata.get("encoding") == MISSING_KEY_ENCODING
    return payload.data.decode(errors="replace") if is_missing else None


def require_value_key(payload: Payload) -> None:
    """Raise KeyMissing if this worker lacks the key of a payload: another worker may have it."""
    if (key := missing_value_key(payload)) is not None:
        raise KeyMissing(
            f"a value is encrypted with the key {printable_line(shorten(key))}, {KEY_IS_MISSING}: it is left to "
            "another worker; give all workers the same keys"
        )


def json_payload(value: Any) -> Payload:
    """The payload of a JSON value. Raises TypeError, ValueError or RecursionError if it is none."""
    return Payload(metadata={"encoding": JSON_ENCODING}, data=encode_json(value))


def question(value: Any) -> RawValue:
    """The argument of a query, never encrypted: a worker without the key of the one who asks can answer as well.

    Temporal keeps no query. ``value``: ids and random texts, no value of a saga. Raises as :func:`json_payload`.
    """
    payload = json_payload(value)
    payload.metadata[UNENCRYPTED] = b"true"
    return RawValue(payload)


def raw_json(value: Any) -> RawValue:
    """A JSON value that no converter changes. Raises as :func:`json_payload`."""
    return RawValue(json_payload(value))


def read_payload(payload: Payload, *, unambiguous: bool = False) -> Any:
    """The value of a payload of JSON, the only encoding that sagas can store. Raises UnreadableValue, and KeyMissing if
    this worker lacks the key of the payload.

    ``unambiguous``: it may come from another program, so no object may have a name twice.
    """
    require_value_key(payload)
    encoding = payload.metadata.get("encoding", b"")
    if encoding == _NULL:
        return None
    if encoding == SEVERAL_VALUES.metadata["encoding"]:
        raise UnreadableValue("it is more than one value")
    if encoding != JSON_ENCODING:
        raise UnreadableValue(f"unknown payload encoding {encoding.decode(errors='backslashreplace')[:80]}")
    try:
        return decode_unambiguous(payload.data) if unambiguous else decode_json(payload.data)
    except RecursionError:
        raise UnreadableValue(f"it is nested deeper than {MAX_JSON_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise UnreadableValue("it is not UTF-8 text") from None
    except InvalidJson as error:
        raise UnreadableValue(f"it is not JSON: {encodable(str(error))}") from None
    except ValueError as error:
        raise UnreadableValue(encodable(str(error))) from None


def read_bounded(payload: Payload, max_values: int, *, around: int = 0, unambiguous: bool = False) -> Any:
    """The value of a payload that any client or worker may have sent; too many values are not read, as a workflow task
    has no time for them. Raises as :func:`read_payload`.

    ``around``: values that it may have beyond those of its content.
    """
    if has_more_values(payload.data, max_values + around):
        raise UnreadableValue(f"it has more than {max_values:,} values")
    return read_payload(payload, unambiguous=unambiguous)


def first_value(args: Sequence[RawValue], *, max_values: int = MAX_INPUT_VALUES, around: int = 0) -> Any:
    """The first argument; None without arguments. Raises UnreadableValue, also for too many values."""
    return read_bounded(args[0].payload, max_values, around=around, unambiguous=True) if args else None


def bounded_value(
    args: Sequence[RawValue], *, max_values: int = MAX_INPUT_VALUES, around: int = 0, half_pairs: bool = False
) -> Any:
    """The first argument of a start or a signal; None without arguments.

    Raises UnreadableValue, also for a value out of bounds. ``around``: see :func:`read_bounded`; ``half_pairs``: see
    :func:`json_problem`.
    """
    value = first_value(args, max_values=max_values, around=around)
    if (problem := json_problem(value, half_pairs=half_pairs)) is not None:
        raise UnreadableValue(problem)
    return value


def activity_result(returned: RawValue | None, *, around: int = 0) -> Any:
    """Return what an activity has returned: a value that cannot be kept is replaced by the reason, as the effect is
    there.

    ``around``: values that the result may have beyond those of its content.
    """
    if returned is None:
        return None
    try:
        return bounded_value([returned], max_values=MAX_RESULT_VALUES, around=around, half_pairs=True)
    except UnreadableValue as error:
        return {"omitted": "unreadable", "reason": str(error)}


def failure_payloads(error: ApplicationError) -> Sequence[Payload]:
    """The details of a failure as they were sent."""
    return [] if error.failure is None else error.failure.application_failure_info.details.payloads


def failure_details(error: ApplicationError) -> Any:
    """The first detail of a failure; None without details. The SDK has read the error's own with its converter."""
    if error.failure is None:
        return error.details[0] if error.details else None
    payloads = failure_payloads(error)
    try:
        return read_bounded(payloads[0], MAX_RESULT_VALUES, around=ENVELOPE_VALUES) if payloads else None
    except UnreadableValue as unreadable:
        return {"omitted": "unreadable", "reason": str(unreadable)}
