"""A failure as it leaves the worker: masked, bounded, and encodable, as Temporal would try again otherwise."""

from __future__ import annotations

import json

from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import omitted
from sagas.settings.masking import mask, mask_known_secrets, mask_properties
from sagas.text.json_values import encodable

MAX_DETAILS_BYTES = 256 * 1024
MAX_MESSAGE_CHARACTERS = 8 * 1024
"""Bytes of a failure's details, characters of its message: larger ones would not reach Temporal's server."""


def reported_failure(outcome: Outcome) -> Failure:
    """The failure of an attempt that is not done, for Temporal's history."""
    failure = outcome.failure or Failure("Unknown", "no reason was given")
    details = json.loads(encodable(json.dumps(dict(failure.details), default=str, ensure_ascii=False)))
    size = len(json.dumps(details))
    if size > MAX_DETAILS_BYTES:
        details = omitted(size)
    elif outcome.kind == "rejected":  # the business's own words, which may look like credentials without being any
        details = mask_known_secrets(details)
    else:
        details = mask_properties(details)
    return Failure(failure.type, encodable(mask(failure.message)[:MAX_MESSAGE_CHARACTERS]), details)
