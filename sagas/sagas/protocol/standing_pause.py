"""The standing pause of a connection, or of all sagas of a name: ordered by an operator, or by a circuit breaker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.text.shell import saga_command

PauseKind = Literal["saga", "connection"]
"""A pause by an operator: of all sagas of a name, or of a connection."""

HoldKind = Literal["saga", "connection", "circuit_breaker"]
"""The reason why calls are held back: a pause by an operator, or the open circuit breaker of a connection."""

CIRCUIT_BREAKER = "the circuit breaker"
"""``who`` of a pause that no operator has ordered."""


ANSWERED = "answered"
"""The detail of a call that is held back with the last answer that there was: its `status` and `message`."""


@dataclass(frozen=True, slots=True)
class StandingPause:
    """A pause that also holds for sagas that are started later, until it is resumed.

    ``at``: its begin, a timestamp. ``age``: seconds since then when it was read, by the clock that ``at`` is from.
    """

    kind: HoldKind
    name: str
    at: str
    who: str
    reason: str | None = None
    age: float = field(default=0.0, compare=False)

    @property
    def text(self) -> str:
        """A clause that says what is paused, by whom, since when and why."""
        if self.kind == "circuit_breaker":
            why = f": {self.reason}" if self.reason else ""
            return f"the circuit breaker of the connection {self.name} is open since {self.at}{why}"
        what = f"all sagas of {self.name} are" if self.kind == "saga" else f"the connection {self.name} is"
        return f"{what} paused by {self.who} since {self.at}" + (f" because: {self.reason}" if self.reason else "")

    @property
    def order(self) -> str:
        return pause_order(self.kind, self.name)

    @property
    def resume_command(self) -> str:
        return resume_command(self.kind, self.name)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "at": self.at, "who": self.who, "reason": self.reason}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StandingPause | None:
        """The reverse of :meth:`to_json`; None for anything else, which a worker of another project may send."""
        kind, name, at, who, reason = (data.get(field) for field in ("kind", "name", "at", "who", "reason"))
        if kind not in ("saga", "connection", "circuit_breaker") or not (reason is None or isinstance(reason, str)):
            return None
        if not (isinstance(name, str) and isinstance(at, str) and isinstance(who, str)):
            return None
        return StandingPause(kind, name, at, who, reason)


ONE_SAGA = "operator"
"""The order of a pause of one saga, by its id or a filter."""


def pause_order(kind: HoldKind | None, name: str | None) -> str:
    """The search attribute SagaPaused of the sagas that a pause holds back; ``kind`` None: the pause of one saga."""
    return ONE_SAGA if kind is None else f"{kind}={name}"


def resume_command(kind: HoldKind, name: str) -> str:
    """The command that ends the pause, or closes the circuit breaker."""
    return saga_command("resume", **{"saga" if kind == "saga" else "connection": name})
