"""The size of a value in one Temporal payload.

Temporal refuses a payload of 2 MiB. A workflow that sends one fails its task again and again, so sizes are checked
before anything is sent, and by every worker before it returns a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sagas.input_limits import MAX_RESULT_VALUES
from sagas.text.exact_json import encode_json
from sagas.text.json_values import has_more_values

MAX_PAYLOAD_BYTES = 2 * 1024 * 1024 - 64 * 1024
"""Bytes of arguments, of a result or an output as JSON. The rest of the 2 MiB is for the envelope around the value."""

MAX_STATE_CHARACTERS = MAX_PAYLOAD_BYTES - 64 * 1024
"""Characters of a packed machine in a payload; the rest of it is for the other fields."""

Limit = Literal["size", "values"]
"""Why a value is not kept: for the bytes of its JSON, or for the number of its values."""

MAX_MESSAGE_CHARACTERS = 8 * 1024
MAX_TYPE_CHARACTERS = 200
"""Characters of the message and the type of a failure; a worker in another language may send megabytes."""


def size_problem(what: str, size: int) -> str:
    """The sentence about a value that is too large for a payload."""
    return f"the size of {what} is {size:,} bytes; Temporal accepts {MAX_PAYLOAD_BYTES:,}"


def in_parts(lines: Sequence[str], limit: int) -> list[list[str]]:
    """Cut lines into parts of at most ``limit`` characters; a longer line is alone in its part."""
    parts: list[list[str]] = []
    size = limit
    for line in lines:
        if size + len(line) > limit:
            parts.append([])
            size = 0
        parts[-1].append(line)
        size += len(line)
    return parts


def limit_size(value: Any) -> Any:
    """The value, or the placeholder for one that is too large for a payload or has too many values."""
    text = encode_json(value)
    limit = passed_limit(text)
    return value if limit is None else omitted(len(text), limit)


def passed_limit(text: bytes) -> Limit | None:
    """The limit because of which the JSON of a result or an output is not kept; None if it is kept.

    A workflow task would take too long for more.
    """
    if len(text) > MAX_PAYLOAD_BYTES:
        return "size"
    return "values" if has_more_values(text, MAX_RESULT_VALUES) else None


def is_omitted(value: Any) -> bool:
    """True for what stands in place of a value that could not be kept: it says how large it was, or why not."""
    if not isinstance(value, dict) or len(value) != 2:
        return False
    return tells_size(value) or (value.get("omitted") == "unreadable" and isinstance(value.get("reason"), str))


def tells_size(value: Mapping[str, Any]) -> bool:
    """True for fields that :func:`omitted` could have written. A worker of another project may answer with any."""
    size = value.get("bytes")
    return value.get("omitted") in ("size", "values") and type(size) is int and size > 0


def omitted(size: int, limit: Limit = "size") -> dict[str, Any]:
    """The placeholder for a value whose JSON of ``size`` bytes is too large to keep, or has too many values."""
    return {"omitted": limit, "bytes": size}


def measure(placeholder: Mapping[str, Any]) -> str:
    """The words about a value in whose place :func:`omitted` stands: its size, or that it has too many values."""
    if placeholder["omitted"] == "values":
        return f"more than {MAX_RESULT_VALUES:,} values"
    return f"{placeholder['bytes']:,} bytes"
