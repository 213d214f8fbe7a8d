"""How long a run waits until it asks again whether another saga has ended, which does not report to it."""

from __future__ import annotations

from datetime import timedelta

_SHARE_WAITED = 0.1
"""Share of the time waited so far that passes until the next question: an end is noticed late by a tenth of that time,
and a saga that waits for months costs a few hundred questions.
"""

_SHORTEST_WAIT, _LONGEST_WAIT = 1.0, 86_400.0
"""Seconds."""


def wait_until_next_look(elapsed: float) -> timedelta:
    """The time until a run asks again whether another saga has ended, for which it has waited ``elapsed`` seconds."""
    return timedelta(seconds=min(max(_SHORTEST_WAIT, _SHARE_WAITED * elapsed), _LONGEST_WAIT))
