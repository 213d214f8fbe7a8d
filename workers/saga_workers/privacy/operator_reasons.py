"""Masks the reasons of operators in what Temporal stores in clear or shows, such as the reason of its own cancel.

Most sagas have no `x-sensitive` values: their commands import nothing for it.
"""

from __future__ import annotations

from saga_workers.location.locator import Locator
from saga_workers.privacy.saga_values import read_state
from sagas.errors import SagaError
from sagas.text.exact_json import encode_json

_KEYWORD = b"x-sensitive"


async def masked_reason(locator: Locator, saga_id: str, reason: str) -> str:
    """The reason, as :func:`saga_workers.privacy.sensitive_words.word_mask` masks it."""
    if not reason or await _has_no_sensitive_value(locator, saga_id):
        return reason
    from saga_workers.privacy.sensitive_words import word_mask
    from sagas.project import Project

    project = locator.project or (None if locator.settings is None else Project(locator.settings))
    return (await word_mask(locator, project, saga_id))(reason)


async def _has_no_sensitive_value(locator: Locator, saga_id: str) -> bool:
    """True if the definition that the saga runs with is known, and does not have the keyword."""
    try:
        state = await read_state(locator, await locator.locate(saga_id))
    except SagaError:
        return False
    return state is not None and _KEYWORD not in encode_json(state["definition"])
