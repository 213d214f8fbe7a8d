"""A reply as a message, and what it says: docs/reference/message-formats.md in code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from saga_activities.guard.codec import MAX_RESULT_BYTES
from saga_activities.guard.tables_messaging import request
from sagas.outcomes import Failure, Outcome

DONE, REJECTED, FAILED = "done", "rejected", "failed"
OUTCOMES = (DONE, REJECTED, FAILED)

KEY_HEADER = "sagakey"
OUTCOME_HEADER = "sagaoutcome"

_MAX_KEY: int = request.c.step_key.type.length  # pyright: ignore[reportAttributeAccessIssue]


class MalformedReply(ValueError):
    """A message that says nothing anybody could use, in one sentence."""


@dataclass(frozen=True, slots=True)
class Reply:
    """``key`` is the key of the command, ``data`` JSON: the result, or ``{"reason": …, "details": …}``."""

    key: str
    outcome: str
    data: str


def decode_reply(headers: Mapping[str, str], value: bytes | None) -> Reply:
    """Raises :class:`MalformedReply`."""
    key, outcome = headers.get(KEY_HEADER, ""), headers.get(OUTCOME_HEADER, "")
    if not key:
        raise MalformedReply(f"the header {KEY_HEADER} is missing: nobody can say which command was answered")
    if len(key) > _MAX_KEY or "\0" in key:
        raise MalformedReply(f"the header {KEY_HEADER} is no key of a command")
    if outcome not in OUTCOMES:
        said = f"is {outcome!r}" if outcome else "is missing"
        raise MalformedReply(f"the header {OUTCOME_HEADER} {said}; it is one of {', '.join(OUTCOMES)}")
    said = _json(value)
    text = json.dumps(said if outcome == DONE else _refusal(said, outcome), ensure_ascii=False)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise MalformedReply(f"the value holds half a character: {error.reason}") from None
    if size > MAX_RESULT_BYTES:
        omitted = {"omitted": "size", "bytes": size}
        text = json.dumps(omitted if outcome == DONE else _refusal(omitted, outcome))
    return Reply(key, outcome, text)


def outcome_of(outcome: str, data: str, attempt: int) -> Outcome:
    """What a recorded reply says about the effect; ``attempt`` is that of the attempt it is told to."""
    said = json.loads(data)
    if outcome == DONE:
        return Outcome.done(said, attempt=attempt)
    failure = Failure("Rejected" if outcome == REJECTED else "Failed", said["reason"], said["details"])
    kind = "rejected" if outcome == REJECTED else "failed"
    return Outcome(kind, failure=failure, attempt=attempt, retryable=False)


def _refusal(said: Any, outcome: str) -> dict[str, Any]:
    """The reason and the details of a refusal, however little was said."""
    match said:
        case {"reason": str(reason), **rest} if reason:
            details = rest.get("details")
            return {"reason": reason, "details": details if isinstance(details, dict) else {}}
        case str() if said:
            return {"reason": said, "details": {}}
        case dict():
            return {"reason": f"the participant answered {outcome}", "details": said}
    return {"reason": f"the participant answered {outcome}", "details": {}}


def _json(value: bytes | None) -> Any:
    """The value as JSON; nothing at all is null. Raises :class:`MalformedReply`."""
    if not value:
        return None
    try:
        return json.loads(value.decode(), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise MalformedReply(f"the value is not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise MalformedReply(f"the value is not JSON: {error}") from None
    except RecursionError:
        raise MalformedReply("the value is nested too deeply") from None


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")
