"""The ground truth: every effect in the order in which it was committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

EffectKind = Literal["do", "undo", "confirm", "always"]
"""``always``: a compensation that ran although there was no effect."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One committed effect. ``by_hand``: an operator made it, outside the engine."""

    entry: str
    generation: int
    kind: EffectKind
    action: str
    by_hand: bool = False


@dataclass
class EffectLog:
    """All effects of one saga, oldest first."""

    effects: list[Effect] = field(default_factory=list)

    def add(self, effect: Effect) -> None:
        self.effects.append(effect)

    def count(self, entry: str, generation: int, kind: EffectKind) -> int:
        return sum(e.entry == entry and e.generation == generation and e.kind == kind for e in self.effects)

    def net(self, entry: str, generation: int | None = None) -> int:
        """The number of standing effects of the entry: those made minus those undone."""
        total = 0
        for e in self.effects:
            if e.entry == entry and (generation is None or e.generation == generation):
                total += {"do": 1, "undo": -1, "confirm": 0, "always": 0}[e.kind]
        return total

    def confirmed(self, entry: str) -> int:
        return sum(e.entry == entry and e.kind == "confirm" for e in self.effects)

    def identities(self) -> list[tuple[str, int]]:
        """Every (entry, generation) that ever had an effect, in order of the first one."""
        return list(dict.fromkeys((e.entry, e.generation) for e in self.effects))
