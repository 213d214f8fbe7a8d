"""What a probe action may answer about an attempt that nobody can judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Done:
    """The effect is there; ``result`` becomes the step's result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The effect is not there."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe cannot tell, either."""

    message: str = ""
