"""A drawn saga that a bulk workflow runs several times: its members differ in their inputs and in the answers of their
participants.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.integration.engine.sequences.drawn_sagas import DrawnSaga, DrawnStep, Kind, draw_answers, draw_saga

_SHARED: Sequence[Kind] = ("sql", "sql", "python", "python", "batch", "each")
_ALONE: Sequence[Kind] = ("call", "call", "crossed", "auto", "two", "nested", "nested")
"""Steps with which a saga leaves its bulk workflow, at the latest when they are undone."""


@dataclass(frozen=True)
class Member:
    """A row of the file. ``saga``: with the answers of this one's participants."""

    id: str
    saga: DrawnSaga
    input: dict[str, Any]

    @property
    def row(self) -> str:
        return json.dumps(self.input)


def draw_batch(random: Random, seed: int) -> list[Member]:
    """Three to six sagas of one definition."""
    saga = _draw_definition(random)
    members: list[Member] = []
    for number in range(random.randrange(3, 7)):
        id = f"m{number}-{seed}"
        divisors = {step.id: _divisor(random, step) for step in saga.steps if step.kind != "wait"}
        input = {"id": id, "waits": random.random() < 0.3, "divisors": divisors}
        members.append(Member(id, _with_answers(random, saga), input))
    return members


def _divisor(random: Random, step: DrawnStep) -> int:
    after_pivot = not step.undo and not step.pivot
    return 1 if after_pivot or random.random() < 0.85 else random.choice((0, 2, 2))


def _draw_definition(random: Random) -> DrawnSaga:
    count = random.choice((2, 3, 3, 4))
    pivot = random.randrange(count) if random.random() < 0.3 else None
    leaves_at = random.randrange(count) if random.random() < 0.6 else None
    steps: list[DrawnStep] = []
    for place in range(count):
        after = pivot is not None and place > pivot
        kind: Kind = random.choice(_ALONE if place == leaves_at else _SHARED)
        if after and kind in ("auto", "crossed", "two"):
            kind = "call"
        if place == pivot and kind not in ("sql", "python", "call", "nested"):
            kind = "sql"
        nested = None
        if kind == "nested":
            share = 0.5 if after or place == pivot else 0.0
            nested = draw_saga(random, f"inner{place}", depth=0, pivot_share=share)
        steps.append(
            DrawnStep(
                "abcd"[place],
                kind,
                random.choice(("bank", "till")),
                pivot=place == pivot,
                undo=pivot is None or place < pivot,
                on_failure="park" if random.random() < 0.15 and place != pivot else None,
                nested=nested,
                pause=random.choice((0.02, 0.2, 0.5)),
                is_savepoint=place < (count - 1 if pivot is None else pivot) and random.random() < 0.12,
            )
        )
    if random.random() < 0.5:
        steps.insert(random.randrange(1, len(steps) + 1), DrawnStep("w", "wait"))
    deadline = random.choice((2.0, 4.0, 8.0)) if random.random() < 0.15 else None
    has_lock = random.random() < 0.1  # then the sagas leave before their first step
    return DrawnSaga("outer", tuple(steps), has_lock=has_lock, is_member=True, deadline=deadline)


def _with_answers(random: Random, saga: DrawnSaga) -> DrawnSaga:
    """The saga with other answers of its participants, and those of nested ones."""
    steps = [
        replace(
            step,
            answers=draw_answers(random) if step.kind in ("call", "crossed") else {},
            nested=None if step.nested is None else _with_answers(random, step.nested),
        )
        for step in saga.steps
    ]
    return replace(saga, steps=tuple(steps))
