"""The real guard on real tables against the model.

The guard remembers nothing outside its tables, so an order is a path through the states of the tables. Every state
that any order can reach is reached by its shortest path, and every operation is delivered in every one of them:
that covers all orders of any length of one generation. Orders over two generations are then drawn at random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from saga_activities.guard.entry_key import EntryKey
from tests.helpers.sampling import scaled
from tests.integration.guard.conftest import GuardDatabase, clock, new_address
from tests.unit.guard.memory_guard import answer, deliver
from tests.unit.guard.model import EVENTS, Event, State, Watch, violations, watched
from tests.unit.guard.model import deliver as model_deliver


async def test_every_operation_in_every_state(guard_database: GuardDatabase) -> None:
    paths: dict[State, tuple[Event, ...]] = {State(): ()}
    waiting = [State()]
    transitions = 0
    while waiting:
        state = waiting.pop(0)
        for event in EVENTS:
            address = await _prepared(guard_database, paths[state])
            expected, wanted = model_deliver(state, event)
            outcome = await deliver(guard_database.guard, address, event, guard_database.body, clock())
            assert answer(outcome) == expected, (*paths[state], event)
            assert await guard_database.state(address) == wanted, (*paths[state], event)
            if outcome.kind == "done" and event == "do":
                assert outcome.result == {"effect": "applied"}, "a later delivery gets the stored result"
            transitions += 1
            if wanted not in paths:
                paths[wanted] = (*paths[state], event)
                waiting.append(wanted)
    assert len(paths) >= 6
    assert transitions == len(paths) * len(EVENTS)


async def _prepared(guard_database: GuardDatabase, path: Sequence[Event]) -> EntryKey:
    address = guard_database.current = new_address()
    for event in path:
        await deliver(guard_database.guard, address, event, guard_database.body, clock())
    return address


@pytest.mark.sampled(keep=1)
async def test_random_orders_over_two_generations(guard_database: GuardDatabase) -> None:
    dice = random.Random(7)
    for _ in range(scaled(12, 200)):
        first = new_address()
        states, watches = {1: State(), 2: State()}, {1: Watch(), 2: Watch()}
        path: list[str] = []
        for _ in range(9):
            generation = dice.choice((1, 2) if watches[1].gone else (1,))
            event = dice.choice(EVENTS)
            path.append(f"{event}{generation}")
            guard_database.current = replace(first, generation=generation)
            before = states[generation]
            reported = answer(
                await deliver(guard_database.guard, guard_database.current, event, guard_database.body, clock()),
            )
            after = await guard_database.state(guard_database.current)
            assert (reported, after) == model_deliver(before, event), path
            assert violations(before, event, reported, after, watches[generation]) == [], path
            states[generation] = after
            watches[generation] = watched(watches[generation], event, reported, after)
