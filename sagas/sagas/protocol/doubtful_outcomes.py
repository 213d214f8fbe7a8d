"""The reasons why what a run says of its saga is not believed, as the field ``incomplete`` of its view has them."""

from __future__ import annotations

import re

_UNSIGNED = "(unverified): no key of this project has signed "

UNVERIFIED = f"{_UNSIGNED}the outcome of the run"
"""The run may be anybody's."""

UNVERIFIED_ANSWER = f"{_UNSIGNED}the answer of the run"
"""The run, or the worker that has answered for it, may be anybody's."""

NOT_VERIFIED = (
    "how sagas have ended is not verified: no key of the project is here, so any client of Temporal may have closed "
    "their runs"
)
"""Why the views that a process without a key shows have no mark but their field ``verified``."""

VERIFY_HELP = "run it where the project's key is, or set definition_key under [worker] as its workers have it"

IN_LEDGER = "; this is what the ledger has"
"""The end of a reason if the view is that of the ledger."""

_ENCRYPTED = re.compile(r"\(encrypted with the key ([0-9a-f]{12})\): ")
_KEY_ID = re.compile("[0-9a-f]{12}")


def encrypted_outcome(key_id: str) -> str:
    """The reason if the run names a key of `[codec]` that this process does not have: as any client can name one, the
    run may be anybody's until the key is there.
    """
    if _KEY_ID.fullmatch(key_id) is None:
        return UNVERIFIED
    return f"(encrypted with the key {key_id}): the outcome of the run cannot be read, as [codec] key lacks that key"


def is_doubt(text: str) -> bool:
    """True for one of these reasons, also with the view of the ledger."""
    return text.startswith(_UNSIGNED) or missing_key(text) is not None


def missing_key(text: str) -> str | None:
    """The id of the key that is missing; None if that is not the reason."""
    match = _ENCRYPTED.match(text)
    return None if match is None else match[1]


def short_doubt(text: str) -> str:
    """The beginning of a reason, for a table."""
    return text.partition(":")[0]
