"""Which JSON values from outside the engine takes: inputs, signals, results, responses and records."""

from __future__ import annotations

import math
from typing import Any

MAX_DEPTH = 100
"""Levels of lists and objects inside each other. Python could read some more, but not write them again everywhere."""

MAX_INTEGER_BITS = 13_287
"""An integer of at most 4,000 digits, as in expressions."""


def json_problem(value: Any, *, max_values: float = math.inf) -> str | None:
    """Why the value is refused; None if the engine takes it. Never recursive, so no value is too deep for it.

    ``max_values`` is the number of values (elements, fields) that are allowed; where a size in bytes is a limit, no
    number is needed.
    """
    count, waiting = 0, [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if count > max_values:
            return f"it has more than {max_values:,} values"
        if depth > MAX_DEPTH:
            return f"it is nested deeper than {MAX_DEPTH} levels"
        if isinstance(one, int) and one.bit_length() > MAX_INTEGER_BITS:
            return "it has an integer of more than 4,000 digits"
        if isinstance(one, float) and not math.isfinite(one):
            return f"{one} is not a JSON number"
        if isinstance(one, dict | list):
            waiting += [(child, depth + 1) for child in (one.values() if isinstance(one, dict) else one)]
    return None
