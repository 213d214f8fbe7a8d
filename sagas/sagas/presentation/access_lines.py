"""The lines of `saga show` about who has seen the sensitive values of a saga, or has started or operated it by HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sagas.presentation.styled_text import MAX_WHO, Line, local_time, parse_timestamp
from sagas.protocol.access_view import AccessView
from sagas.protocol.operator_names import UNVERIFIED
from sagas.protocol.saga_view import DecisionView, SagaView
from sagas.text.shortening import shorten_middle

_ACCESSES = {
    "reveal": "has seen sensitive values in clear",
    "forget": "had the sensitive values forgotten",
    "start": "has asked to start it",
    "cancel": "has asked to cancel it",
    "pause": "has asked to pause it",
    "resume": "has asked to resume it",
    "signal": "has sent the signal",
    "resolve": "has decided",
    "undo": "has asked to undo it",
}
_HAS_CHANGED_IT = ("accepted", "recorded", "paused", "resumed", "undoing")
"""The answers to a request that a saga records among its decisions."""

_ANSWER_TIME = timedelta(minutes=2)
"""The longest time between the record of a request and the decision of the saga, with clocks that differ."""


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


def told_once(view: SagaView) -> SagaView:
    """The view without the requests by HTTP that its decisions tell as well.

    Such a decision is by the name of the token, which `saga serve` has checked.
    """
    decisions, others = list(view.operator), list[AccessView]()
    open_ones = dict(enumerate(decisions))
    for access in view.accesses or ():
        number = next((number for number, decision in open_ones.items() if _is_told_by(access, decision)), None)
        if number is None:
            others.append(access)
        else:
            decisions[number] = replace(open_ones.pop(number), who=access.who)
    return replace(view, operator=tuple(decisions), accesses=tuple(others) if view.accesses is not None else None)


def _is_told_by(access: AccessView, decision: DecisionView) -> bool:
    asked, decided = parse_timestamp(access.at), parse_timestamp(decision.at)
    if asked is None or decided is None or abs(decided - asked) > _ANSWER_TIME:
        return False
    if access.outcome not in _HAS_CHANGED_IT or decision.who.removesuffix(UNVERIFIED) != access.who:
        return False
    about = access.detail if access.what == "resolve" else access.what
    return about == f"{decision.step} {decision.decision}".strip()
