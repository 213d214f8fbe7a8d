"""A simulated run before and after: what it finds around it, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.definition.model import Definition


@dataclass(frozen=True, slots=True)
class Outside:
    """What a run finds around it: the project's other definitions, ``[vars]``, and what its actions return."""

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of the result, by the action's name."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a simulated run ended. ``undone``: ledger ids in the order undone; of nested sagas as ``buy/charge``.

    ``residue``: effects that stay although the saga says COMPENSATED, or are missing although it says COMPLETED, seen
    from the participants' side. ``story`` is the `saga show` document.
    """

    state: str
    undone: list[str]
    residue: list[dict[str, Any]]
    story: dict[str, Any]
    parked: list[dict[str, Any]]
    notifications: list[dict[str, Any]] = field(default_factory=list)
    """What would be told, in its order: ``id``, ``when``, ``uses``, ``with``; ``problem``: why it could not be made.
    Nobody is told, and nothing depends on it. Nested sagas tell for themselves and are not in here."""

    @property
    def output(self) -> Any:
        return self.story["output"]

    @property
    def reason(self) -> dict[str, Any] | None:
        return self.story["reason"]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.story["steps"]
