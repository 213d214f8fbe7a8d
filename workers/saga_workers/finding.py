"""One line of `saga doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """``ok`` None: neither good nor bad, only said. ``help`` is the next step."""

    check: str
    ok: bool | None
    message: str
    help: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
