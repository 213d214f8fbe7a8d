"""Errors of activities that Temporal shows as they are.

While an attempt is to be repeated, Temporal keeps 4 KiB of its failure: in place of a larger one, nobody would read
more than `Failure exceeds size limit.` The failure of the last attempt is in the history, where there is room.
"""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

from sagas.protocol.size_limits import omitted
from sagas.settings.masking import mask
from sagas.text.author_values import text_of
from sagas.text.exact_json import decode_json
from sagas.text.shortening import shorten_middle_bytes
from sagas.workflow.failures import SagaApplicationError, UnexpectedError
from sagas.workflow.json_payloads import raw_json

_MAX_MESSAGE_BYTES = 2 * 1024
_MAX_DETAILS_BYTES = 1024
"""The rest of the 4 KiB is for the type, the signature, and encryption."""


def bounded_error(error: Exception, info: activity.Info) -> Exception:
    """The error with which the activity ends. An unforeseen one has neither cause nor traceback."""
    if not isinstance(error, FailureError):
        error = UnexpectedError(mask(text_of(error)), type=type(error).__name__)
    if not isinstance(error, SagaApplicationError) or error.non_retryable or _is_last(info):
        return error
    return type(error)(
        shorten_middle_bytes(error.message, _MAX_MESSAGE_BYTES),
        *map(_bounded, error.details),
        type=error.type,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )


def _is_last(info: activity.Info) -> bool:
    most = 0 if info.retry_policy is None else info.retry_policy.maximum_attempts
    return 0 < most <= info.attempt


def _bounded(details: Any) -> Any:
    """The details of a failure, of which those that its participant has given are left out if they are large."""
    if not isinstance(details, RawValue) or (size := len(details.payload.data)) <= _MAX_DETAILS_BYTES:
        return details
    return raw_json({**decode_json(details.payload.data), "details": omitted(size)})
