"""The part of a view that comes from the audit: who has seen or removed the values of a saga, and who has started or
operated it over HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sagas.protocol.json_view import OMITTED, JsonView

Timestamp = Annotated[str, "RFC 3339 in UTC"]

Operation = Literal["cancel", "pause", "resume", "signal", "resolve", "undo"]
"""The requests of operators that `saga serve` makes to sagas."""

Access = Literal["reveal", "forget", "start", "cancel", "pause", "resume", "signal", "resolve", "undo"]

StartOutcome = Literal["started", "existing", "refused", "unanswered"]
"""The outcomes of starts over HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessView(JsonView):
    """An access to the `x-sensitive` values of a saga, a start of it over HTTP, or a request of an operator to `saga
    serve`.
    """

    at: Timestamp
    what: Annotated[
        Access,
        "`reveal`: they were shown in clear; `forget`: they were replaced where they are stored; others: what the "
        "holder of a token of `saga serve` has asked for",
    ]
    who: Annotated[
        str, "the name of the token; for `reveal` and `forget` the name that was given, recorded, not authenticated"
    ]
    reason: Annotated[str | None, "why"] = None
    detail: Annotated[str | None, "the signal, or the step and the decision", OMITTED] = None
    outcome: Annotated[
        str | None,
        "of a request: its `response`, `refused`, `not valid` or `unanswered`; missing if `saga serve` or the ledger "
        "ended before. Of a `start`: `started`, `existing`, `refused` or `unanswered`",
        OMITTED,
    ] = None
