"""A failure as it leaves the worker: masked, bounded, and encodable."""

from __future__ import annotations

import json

from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import omitted
from sagas.settings.masking import mask, mask_known_secrets, mask_properties

MAX_DETAILS_BYTES = 256 * 1024
MAX_MESSAGE_CHARACTERS = 8 * 1024
"""Bytes of a failure's details, characters of its message: larger ones would not reach Temporal's server."""


def reported_failure(outcome: Outcome) -> Failure:
    """The failure of an attempt that is not done, for Temporal's history."""
    failure = outcome.failure or Failure("Unknown", "no reason was given")
    details = json.loads(_encodable(json.dumps(dict(failure.details), default=str, ensure_ascii=False)))
    size = len(json.dumps(details))
    if size > MAX_DETAILS_BYTES:
        details = omitted(size)
    elif outcome.kind == "rejected":  # the business's own words, which may look like credentials without being any
        details = mask_known_secrets(details)
    else:
        details = mask_properties(details)
    return Failure(failure.type, _encodable(mask(failure.message)[:MAX_MESSAGE_CHARACTERS]), details)


def _encodable(text: str) -> str:
    """The text with `?` for half a surrogate pair: Temporal could not encode the failure, and would try again."""
    return text.encode("utf-8", "replace").decode()
