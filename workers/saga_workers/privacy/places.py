"""The places that may have values of a saga, with what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

PlaceStatus = Literal["replaced", "deleted", "nothing", "stays"]


@dataclass(frozen=True, slots=True)
class ForgottenPlace:
    """A place with values. ``detail`` says what was replaced, or why it stays and what can be done about that."""

    place: str
    status: PlaceStatus
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"place": self.place, "status": self.status, "detail": self.detail}
