"""Every order in which a network may deliver the operations of a step, walked as a tree so that prefixes are shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from saga_activities.guard.entry_key import EntryKey
from tests.unit.guard.memory_guard import TIMES, Memory, MemoryGuard, answer, body, deliver, now
from tests.unit.guard.model import Event, State, Watch, violations, watched
from tests.unit.guard.model import deliver as model_deliver

Budget = Mapping[tuple[int, Event], int]
"""How often each operation of each generation is delivered at most."""


@dataclass
class Walk:
    """Result of a walk over all orders: how many, the promises broken, and where guard and model disagreed."""

    orders: int = 0
    violated_orders: int = 0
    broken: dict[str, tuple[str, ...]] = field(default_factory=dict)
    disagreements: list[tuple[str, ...]] = field(default_factory=list)


ONE_GENERATION: Budget = {(1, "do"): 3, (1, "undo"): 2, (1, "confirm"): 2, (1, "seal"): 2}
REFUSALS: Budget = {
    (1, "do"): 2,
    (1, "refused_do"): 1,
    (1, "undo"): 2,
    (1, "undo_of_others"): 1,
    (1, "constraint_conflict"): 1,
}
CONFIRMED: Budget = {
    (1, "do"): 2,
    (1, "undo_confirmed"): 2,
    (1, "constraint_conflict"): 1,
    (1, "confirm"): 2,
    (1, "seal"): 1,
}
TWO_GENERATIONS: Budget = {
    (1, "do"): 2,
    (1, "undo"): 1,
    (1, "seal"): 1,
    (2, "do"): 2,
    (2, "refused_do"): 1,
    (2, "undo"): 1,
    (2, "confirm"): 1,
}
HELD_AND_COMMITTED: Budget = {(1, "do"): 2, (1, "confirm"): 2, (1, "ask_committed"): 2, (1, "undo_confirmed"): 2}
HELD_AND_OVER: Budget = {
    (1, "do"): 2,
    (1, "undo"): 2,
    (1, "confirm"): 1,
    (1, "ask_over"): 2,
    (1, "ask_committed"): 1,
    (1, "seal"): 1,
}
BUDGETS: Mapping[str, Budget] = {
    "one generation": ONE_GENERATION,
    "refusals": REFUSALS,
    "confirmed": CONFIRMED,
    "two generations": TWO_GENERATIONS,
    "held, committed": HELD_AND_COMMITTED,
    "held, over": HELD_AND_OVER,
}


def walk(budget: Budget) -> Walk:
    """Deliver every order within ``budget`` to the real guard and to the model.

    The second generation starts only when the first was undone or sealed, as the machine does it; late deliveries of
    the first may come at any time after.
    """
    result = Walk()
    _step(result, dict(budget), Memory({}, {}), {1: State(), 2: State()}, {1: Watch(), 2: Watch()}, ())
    return result


def _step(
    result: Walk,
    budget: dict[tuple[int, Event], int],
    memory: Memory,
    states: dict[int, State],
    watches: dict[int, Watch],
    path: tuple[str, ...],
) -> None:
    result.orders += 1
    for (generation, event), deliveries in budget.items():
        if not deliveries or (generation == 2 and not watches[1].gone):
            continue
        guard = MemoryGuard(memory)
        before = memory.state(generation)
        reported = answer(now(deliver(guard, EntryKey("saga", "step", generation), event, body, TIMES)))
        after = guard.memory.state(generation)
        here = (*path, f"{event}{generation}")
        expected, wanted = model_deliver(states[generation], event)
        if (reported, after) != (expected, wanted):
            result.disagreements.append(here)
        broken = violations(before, event, reported, after, watches[generation])
        for name in broken:
            result.broken.setdefault(name, here)
        if broken:
            result.violated_orders += 1
            continue  # later steps of a violated order add nothing
        budget[generation, event] -= 1
        _step(
            result,
            budget,
            guard.memory,
            {**states, generation: wanted},
            {**watches, generation: watched(watches[generation], event, reported, after)},
            here,
        )
        budget[generation, event] += 1
