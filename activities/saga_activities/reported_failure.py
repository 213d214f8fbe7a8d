"""A failure as it leaves the worker: masked, bounded, and encodable, as Temporal would try again otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS, omitted
from sagas.settings.masking import mask, mask_known_secrets, mask_properties
from sagas.text.exact_json import encode_json
from sagas.text.json_values import encodable
from sagas.text.shortening import shorten_middle

MAX_DETAILS_BYTES = 256 * 1024
"""Bytes of a failure's details: larger ones would not reach Temporal's server."""


def reported_failure(outcome: Outcome) -> Failure:
    """The failure of an attempt that is not done, for Temporal's history."""
    failure = outcome.failure or Failure("Unknown", "no reason was given")
    details: Any = failure.details
    size = len(encode_json(details))
    if size > MAX_DETAILS_BYTES:
        details = omitted(size)
    elif outcome.kind == "rejected":  # the business's own words, which may look like credentials without being any
        details = mask_known_secrets(details)
    else:
        details = mask_properties(details)
    message = mask(_ends(failure.message, 2 * MAX_MESSAGE_CHARACTERS))
    return replace(failure, message=encodable(shorten_middle(message, MAX_MESSAGE_CHARACTERS)), details=details)


def _ends(text: str, size: int) -> str:
    """The first and the last ``size`` characters of a longer text, without the words that are cut: half a credential is
    not masked. A word as long as that is not a credential: it is cut.
    """
    if len(text) <= 2 * size:
        return text
    first, last = text[:size].rsplit(maxsplit=1), text[-size:].split(maxsplit=1)
    return f"{''.join(first[:1])} … {''.join(last[-1:])}"
