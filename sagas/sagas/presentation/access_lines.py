"""The lines of `saga show` about who has seen the sensitive values of a saga, or has operated it over HTTP."""

from __future__ import annotations

from sagas.presentation.styled_text import MAX_WHO, Line, local_time, parse_timestamp
from sagas.protocol.access_view import AccessView
from sagas.protocol.saga_view import SagaView
from sagas.text.shortening import shorten_middle

_ACCESSES = {
    "reveal": "has seen sensitive values in clear",
    "forget": "had the sensitive values forgotten",
    "cancel": "has asked to cancel it",
    "pause": "has asked to pause it",
    "resume": "has asked to resume it",
    "signal": "has sent the signal",
    "resolve": "has decided",
    "undo": "has asked to undo it",
}


def access_lines(view: SagaView) -> list[Line]:
    """A line for each time that the sensitive values were shown in clear or forgotten, and for each request by HTTP."""
    return [
        [
            (f"{local_time(at)}  " if (at := parse_timestamp(access.at)) else "", "dim"),
            (f"{shorten_middle(access.who, MAX_WHO)} ", "bold"),
            (access_text(access), ""),
        ]
        for access in view.accesses or ()
    ]


def access_text(access: AccessView) -> str:
    """The access or request in words, after the name of who has made it."""
    detail = f" {access.detail}" if access.detail else ""
    reason = f", because {access.reason}" if access.reason else ""
    outcome = "" if access.what in ("reveal", "forget") else f": {access.outcome or 'no outcome was recorded'}"
    return f"{_ACCESSES[access.what]}{detail}{reason}{outcome}"
