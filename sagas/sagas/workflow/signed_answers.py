"""The answers of activities: anybody who reaches Temporal can complete an activity by its id, or fail it.

So an answer of a worker of the project counts only with a signature for this request of this run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError, FailureError

from sagas.input_limits import MAX_RETRY_DELAY
from sagas.protocol.outcomes import Failure, Outcome, is_held_back
from sagas.protocol.payloads import ANSWER_METADATA, NOT_REGISTERED_TYPES, UNSIGNED_TYPE, decode_failure, decode_result
from sagas.protocol.signed_content import failure_content, read_answer_signature
from sagas.workflow.failures import activity_failure, activity_outcome, attempts_made
from sagas.workflow.json_payloads import ENVELOPE_VALUES, activity_result, failure_payloads, missing_value_key
from sagas.workflow.run_trust import UNTRUSTED, ProjectTrust, is_untrusted, require_key, run_trust
from sagas.workflow.undecoded import UNDECODED_ANSWER, is_undecoded

UNSIGNED_ANSWER = Failure(
    "UnsignedAnswer", "the answer is not signed with a key of this worker, so it is not known what the attempt has done"
)


def is_signed_answer(
    name: str,
    request: Payload,
    answer: Payload,
    marker: str,
    failure: Mapping[str, Any] | None = None,
    *,
    call: str,
) -> bool:
    """True if a worker of the project has given this answer to this call of this run. ``marker``: unique in the run,
    for the request of this digest. ``failure``: of a failure, whose detail the answer is. ``call``: see
    :func:`sagas.workflow.run_trust.latest_call`.
    """
    trust, digest = run_trust(), sha256(request.data).hexdigest()
    content = {"activity": name, "call": call, "request": digest}
    content |= {"workflow_id": workflow.info().workflow_id, **(failure or {})}

    def is_signed(trust: ProjectTrust) -> bool:
        return missing_value_key(answer) is None and trust.trusts_answer(content, answer)

    return not is_untrusted(trust, is_signed, f"{UNTRUSTED} {marker} {digest[:12]}", proof=is_signed)


def is_believed_answer(
    name: str,
    request: Payload,
    answer: Payload,
    marker: str,
    failure: Mapping[str, Any] | None = None,
    *,
    call: str,
) -> bool:
    """True if this answer about an effect is signed, see :func:`is_signed_answer`.

    Raises KeyMissing while another worker may have the key of the signature: when keys are rotated, the answer of a
    worker that has the new key may reach one without it. So it does while another worker may have the key that the
    answer is encrypted with.
    """
    if is_undecoded(answer, marker, waits=True):
        return False
    signature = read_answer_signature(answer.metadata.get(ANSWER_METADATA, b""))
    require_key(run_trust(), marker, signature, f"the answer of {name} ({marker})")
    return is_signed_answer(name, request, answer, marker, failure, call=call)


def is_believed_failure(name: str, request: Payload, error: ApplicationError, marker: str, *, call: str) -> bool:
    """True if this failure is signed, see :func:`is_believed_answer`."""
    details = failure_payloads(error)
    # A worker without the key signs nothing: no marker in the history for each of its answers.
    if not details or error.type == UNSIGNED_TYPE:
        return False
    failure = failure_content(error.type, final=error.non_retryable)
    return is_believed_answer(name, request, details[0], marker, failure, call=call)


def outcome_of_answer(name: str, request: Payload, answer: Any, marker: str, *, call: str) -> Outcome:
    """The outcome of a call to a worker of the project, from what it has returned."""
    payload = Payload() if answer is None else answer.payload
    if not is_believed_answer(name, request, payload, marker, call=call):
        return Outcome("unknown", failure=UNSIGNED_ANSWER)
    return decode_result(activity_result(answer, around=ENVELOPE_VALUES))


def outcome_of_failure(
    name: str,
    request: Payload,
    error: FailureError,
    marker: str,
    max_attempts: int,
    *,
    call: str,
    is_guarded: bool,
    is_local: bool = False,
) -> Outcome:
    """The outcome of a call to a worker of the project, from its failure, after at most ``max_attempts`` attempts.
    ``is_local``: it is a local activity, which nobody can end from outside.

    What Temporal itself says about the attempts, such as a timeout, has no signature. Nor has the word of a worker that
    it lacks the action or the key: it counts as "not started" without a number, so attempts before it may be hidden,
    and its details do not count.
    """
    cause = activity_failure(error)
    if not isinstance(cause, ApplicationError):
        return activity_outcome(error)
    if is_believed_failure(name, request, cause, marker, call=call):
        outcome = activity_outcome(error)
        if cause.non_retryable or is_local:
            return outcome
        return _of_last_attempt(outcome, error, max_attempts, is_guarded=is_guarded)
    if cause.type in NOT_REGISTERED_TYPES:
        return decode_failure(cause.type, cause.message, None)
    return Outcome("unknown", failure=UNSIGNED_ANSWER)


def outcome_of_foreign_answer(answer: Any, marker: str) -> Outcome:
    """The outcome of a call to a worker of another project, or of a command, from what was returned."""
    if answer is not None and is_undecoded(answer.payload, marker, waits=True):
        return Outcome("unknown", failure=UNDECODED_ANSWER)
    return decode_result(activity_result(answer))


def is_undecoded_failure(error: FailureError, marker: str) -> bool:
    """True if the run goes on without the details of a failure, see :func:`is_undecoded`."""
    cause = activity_failure(error)
    details = failure_payloads(cause)[:1] if isinstance(cause, ApplicationError) else []
    return any(is_undecoded(detail, marker, waits=True) for detail in details)


def outcome_of_others(error: FailureError, marker: str) -> Outcome:
    """The outcome of a call whose failure no worker of the project has signed, because the step has a task queue of its
    own, or the failure is a reply to a command. A participant, or anybody who reaches Temporal, wrote its message.
    """
    if is_undecoded_failure(error, marker):
        return Outcome("unknown", failure=UNDECODED_ANSWER)
    outcome = activity_outcome(error)
    if outcome.failure is None or not isinstance(activity_failure(error), ApplicationError):
        return outcome
    return replace(outcome, failure=replace(outcome.failure, quotes=True))


def outcome_of_foreign_failure(error: FailureError, marker: str) -> Outcome:
    """The outcome of a call to a worker of another project, from its failure. A rejection that Temporal would repeat
    is none: the worker leaves open what the next attempt finds.
    """
    outcome, cause = outcome_of_others(error, marker), activity_failure(error)
    if not isinstance(cause, ApplicationError) or cause.non_retryable:
        return outcome
    if outcome.kind == "rejected":
        outcome = Outcome("unknown", failure=outcome.failure, retry_after=outcome.retry_after)
    delay = cause.next_retry_delay
    if delay is None or not 0 < delay.total_seconds() <= MAX_RETRY_DELAY:
        return outcome  # a later attempt of the same call is not made if it would come too late
    return replace(outcome, retry_after=delay.total_seconds())


def outcome_of_request(name: str, request: Payload, error: FailureError, marker: str, *, call: str) -> Outcome:
    """The outcome of a command, whose failure is a reply, or that of a worker of the project.

    A reply repeats nothing: only a worker, which signs it, can hold an attempt back, or not charge it.
    """
    outcome, cause = outcome_of_others(error, f"reply {marker}"), activity_failure(error)
    is_limited = outcome.charged and not is_held_back(outcome)
    if is_limited or not isinstance(cause, ApplicationError):
        return outcome
    if is_believed_failure(name, request, cause, marker, call=call):
        return outcome
    return replace(outcome, counted=True, breaker=None)


def _of_last_attempt(outcome: Outcome, error: FailureError, max_attempts: int, *, is_guarded: bool) -> Outcome:
    """The outcome of a failure after which Temporal usually repeats the attempt: everybody can read that of an earlier
    attempt, and send it once more as that of a later one.

    It counts only for the attempt of its number. After a cancel, and at the end of `give_up_after`, Temporal does not
    tell the number; then a guard is asked, whatever the failure says about other attempts, and without one the outcome
    is unknown.
    """
    number = attempts_made(error, max_attempts)
    if number is not None:
        return outcome if outcome.attempt == number else Outcome("unknown", failure=UNSIGNED_ANSWER)
    if not is_guarded:
        return Outcome("unknown", failure=outcome.failure, retryable=outcome.retryable)
    return replace(outcome, nothing_before=False, attempt=None if outcome.attempt == 1 else outcome.attempt)
