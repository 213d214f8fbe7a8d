"""``circuit_breaker`` of a connection: when the steps that need it are held, because it fails."""

from __future__ import annotations

import re
from typing import Annotated

from sagas.settings.forms import Form, count, duration
from sagas.settings.table import Table, setting
from sagas.settings.wrong_setting import WrongSetting

MOST_ATTEMPTS = 10_000
"""The attempts that a worker remembers of a connection."""

_PERCENTAGE = re.compile(r"(\d{1,3})%", re.ASCII)


def _read_percentage(written: str) -> int:
    match = _PERCENTAGE.fullmatch(written)
    if match is None or not 1 <= int(match[1]) <= 100:
        raise WrongSetting("", 'must be a percentage from "1%" to "100%"', shows_example=True)
    return int(match[1])


_PERCENT = Form(
    "percentage",
    lambda written: isinstance(written, str),
    'a percentage from "1%" to "100%"',
    _read_percentage,
    {"type": "string", "pattern": "^[0-9]{1,3}%$"},
    is_text=True,
)


class CircuitBreaker(Table):
    """When the circuit breaker of a connection opens, and how it closes.

    ``failures`` is in percent, times are in seconds.
    """

    summary = "See [circuit breakers](../how-to/pause-a-saga.md#circuit-breakers)."

    failures: Annotated[int, _PERCENT] = setting(50, "the share of failed or unknown attempts that opens it", "50%")
    minimum: Annotated[int, count(MOST_ATTEMPTS)] = setting(
        5, "how many attempts of a worker are judged at least: with fewer it stays closed"
    )
    window: Annotated[float, duration(1.0)] = setting(
        30.0, "the attempts of this time are judged, and at least the last `minimum`", "30s"
    )
    probe_every: Annotated[float, duration(1.0)] = setting(
        5.0, "while it is open, one attempt is made after this time; the first that succeeds closes it", "5s"
    )
