"""The lines of `saga show` about who has seen the sensitive values of a saga."""

from __future__ import annotations

from saga_cli.render.text import MAX_WHO, Line, local_time, parse_timestamp
from sagas.protocol.saga_view import SagaView
from sagas.text.shortening import shorten_middle

_ACCESSES = {"reveal": "has seen sensitive values in clear", "forget": "had the sensitive values forgotten"}


def access_lines(view: SagaView) -> list[Line]:
    """A line for each time that the sensitive values were shown in clear or forgotten."""
    return [
        [
            (f"{local_time(at)}  " if (at := parse_timestamp(access.at)) else "", "dim"),
            (f"{shorten_middle(access.who, MAX_WHO)} ", "bold"),
            (_ACCESSES[access.what] + (f", because {access.reason}" if access.reason else ""), ""),
        ]
        for access in view.accesses or ()
    ]
