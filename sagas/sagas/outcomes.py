"""The outcome of one attempt: what is known about an effect after somebody tried to make it.

====================  ==================================================================================
done                  the effect is there, exactly once
rejected              a definite business no; nothing happened
failed                trouble, and it is certain that nothing happened
unknown               nobody can say: a timeout, a lost connection, a dead worker
late                  refused: this step has already been undone or sealed
====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OutcomeKind = Literal["done", "rejected", "failed", "unknown", "late"]

Marker = Literal["nothing_to_undo", "confirmed", "elsewhere", "sealed", "absent", "unknown_effect"]
"""What the guard adds to a bare outcome.

``nothing_to_undo``: the undo sealed the step, or found it sealed. ``confirmed``: the step was confirmed and
there is no action that undoes a confirmed effect; nothing was changed. ``elsewhere``: the undo was decided
here, its action runs in another place. ``sealed``: a seal won, the step never happened and never will.
``absent``: a probe found no effect. ``unknown_effect``: the step is known to be done, but the guard has no
row of it.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt was not done, in words a person can use.

    ``type`` is the wire type of the failure (``Rejected``, ``Infrastructure``, an exception's class name),
    ``message`` one sentence, ``details`` whatever the action added to it.
    """

    type: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "message": self.message, "details": dict(self.details)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Failure:
        return Failure(data["type"], data["message"], data.get("details") or {})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call (all the attempts the platform made for it) ended.

    ``attempt`` is the number, within the call, of the attempt that gave the answer (from 1); None when
    nobody told, as with a worker in another language.
    ``retryable`` is False when trying again cannot help (bad arguments, a result too large).
    ``not_started`` is True when no worker knew the action: such attempts are not counted.
    ``counted`` is False when what runs the action was lost before it had an effect: such an attempt is not counted.
    ``parks`` names a reason why only a person can go on (key used with other arguments …).
    ``retry_after`` is the delay in seconds the participant asked for before the next attempt; None: it asked for none.
    """

    kind: OutcomeKind
    result: Any = None
    failure: Failure | None = None
    attempt: int | None = None
    marker: Marker | None = None
    retryable: bool = True
    not_started: bool = False
    infrastructure: bool = False
    counted: bool = True
    parks: str | None = None
    retry_after: float | None = None

    @staticmethod
    def done(result: Any = None, *, attempt: int | None = 1, marker: Marker | None = None) -> Outcome:
        return Outcome("done", result, attempt=attempt, marker=marker)
