"""Limits the size of all results of one chunk: they reach the workflow as one payload."""

from __future__ import annotations

from collections.abc import Sequence

from saga_activities.bulk.guard_scripts import EntryScript
from sagas.bulk.wire_format import encode_outcomes
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES
from sagas.text.exact_json import encode_json

MAX_RESULTS_BYTES = 1024 * 1024
"""Bytes of the results of one chunk, as JSON, unless a single one has more. The calls beyond are left to the next."""

_TOO_LARGE = Outcome(
    "unknown", failure=Failure("ResultsTooLarge", "the results of its chunk are too large for one payload")
)


def result_size(script: EntryScript) -> int:
    """Bytes of the result of a script, as JSON; 0 if it has none."""
    result = script.result
    if result is None:
        return 0
    if result.row_write is None:
        return len(encode_json(result.outcome.result)) if result.outcome.result else 0
    text = result.row_write.result or ""
    return len(text) if text.isascii() else len(encode_json(text))


def encode_bounded(outcomes: Sequence[Outcome | None], attempt: int) -> dict[str, object]:
    """The result of a chunk within one payload, also where its failures and stored results are too large together.

    Beyond the limit, a call that certainly had no effect is reported as not attempted, so the next chunk performs it
    again; the outcome of any other call is unknown until the guard is asked again.
    """
    encoded = encode_outcomes(outcomes, attempt)
    if len(encode_json(encoded)) <= MAX_PAYLOAD_BYTES:
        return encoded
    kept: list[Outcome | None] = []
    taken = 200 * len(outcomes)  # for the replacements
    for number, outcome in enumerate(outcomes):
        size = len(encode_json(encode_outcomes([outcome], attempt)))
        if number and taken + size > MAX_PAYLOAD_BYTES:
            kept.append(_TOO_LARGE if outcome is not None and outcome.kind in ("done", "unknown") else None)
        else:
            kept.append(outcome)
            taken += size
    return encode_outcomes(kept, attempt)
