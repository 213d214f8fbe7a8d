"""Durations as people write them (`90s`, `10m`, `2h`, `7d`, `500ms`, also `1h30m`) and as seconds."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_FORM = r"(\d+(\.\d+)?(ms|s|m|h|d))+"
PATTERN = f"^{_FORM}$"


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError when ``text`` is not a duration."""
    if not re.fullmatch(_FORM, text, re.ASCII):
        raise ValueError(f"`{text}` is not a duration")
    return round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)), 6)


def format_duration(seconds: float) -> str:
    """The shortest exact way to write it: 90.0 → `90s`, 600.0 → `10m`."""
    for unit in ("d", "h", "m", "s"):
        count = seconds / _UNITS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{round(seconds * 1000, 3):g}ms"
