"""Every message of one saga to an entry that another one has made, with the same id: it takes and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from saga_activities.guard.entry_key import EntryKey
from sagas.protocol.origin import Origin, encode_origin, is_of_another_saga, reference_to, start_of_effect
from sagas.protocol.outcomes import Outcome
from tests.unit.guard.memory_guard import Memory, MemoryGuard, body, now
from tests.unit.guard.messages import MESSAGES

CLOCK: dict[str, Any] = {"scheduled_at": 0.0, "deadline": 0.0}
HERE = EntryKey("saga", "step")

OWNER = Origin("orders", "sha256:1", "ab" * 32, 1.0)
OTHERS = {
    "another input": Origin("orders", "sha256:1", "cd" * 32, 2.0),
    "another name": Origin("returns", "sha256:2", "ab" * 32, 2.0),
}
NESTED = {
    root: Origin("orders", "sha256:1", input * 32, 1.0, parent="saga", root_start=root)
    for root, input in (("first", "ab"), ("second", "ab"), ("", "cd"))
}
"""Sagas of one id that are nested in others of one id, by the start of their root saga, which one does not know."""
WITHOUT_START = ("release held", "drop held")
"""Messages of the relay, which looks at the origin itself."""

OWN_ROWS = ("undo, decided elsewhere", "confirm, decided elsewhere")
"""Messages about actions in this database that belong to a step in another one, or without a guard."""


class GuardOf(MemoryGuard):
    """The guard as the calls of one saga reach it."""

    def __init__(self, memory: Memory, origin: Origin) -> None:
        super().__init__(memory)
        self._origin = encode_origin(origin)

    async def do(self, *args: Any, **options: Any) -> Outcome:
        return await super().do(*args, **{"origin": self._origin, **options})

    async def undo(self, *args: Any, **options: Any) -> Outcome:
        return await super().undo(*args, **{"origin": self._origin, **options})

    async def confirm(self, *args: Any, **options: Any) -> Outcome:
        return await super().confirm(*args, **{"origin": self._origin, **options})

    async def seal(self, *args: Any, **options: Any) -> Outcome:
        return await super().seal(*args, **{"origin": self._origin, **options})

    async def record_manual_result(self, *args: Any, **options: Any) -> Outcome:
        return await super().record_manual_result(*args, **{"origin": self._origin, **options})

    async def lookup(self, *args: Any, **options: Any) -> Outcome | None:
        return await super().lookup(*args, **{"origin": self._origin, **options})


def left_entries() -> Iterator[tuple[tuple[str, ...], Memory]]:
    """The entries that a saga may leave: after one message, and after two, of which the first has had an effect."""
    for first, second in product(MESSAGES, (None, *MESSAGES)):
        guard = GuardOf(Memory({}, {}), OWNER)
        now(MESSAGES[first](guard, HERE, body, CLOCK))  # pyright: ignore[reportArgumentType]
        path = (first,)
        if second is not None:
            now(MESSAGES[second](guard, HERE, body, CLOCK))  # pyright: ignore[reportArgumentType]
            path = (first, second)
        if guard.memory.rows:
            yield path, guard.memory


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_another_saga_takes_and_changes_nothing(other: str, is_short: bool) -> None:
    origin = reference_to(OTHERS[other], is_short=is_short)
    problems, count = [], 0
    for path, memory in left_entries():
        done = (1, "do") in memory.rows and memory.rows[1, "do"].reason == "do"
        for name, send in MESSAGES.items():
            if name in WITHOUT_START or (name not in OWN_ROWS and not done):
                continue
            count += 1
            guard = GuardOf(memory.copy(), origin)
            outcome = now(send(guard, HERE, body, CLOCK))  # pyright: ignore[reportArgumentType]
            rows = {key: row for key, row in guard.memory.rows.items() if key in memory.rows}
            kept = rows == memory.rows and (name in OWN_ROWS or guard.memory.rows == memory.rows)
            if not kept:
                problems.append((path, name, "the entry has changed"))
            if name not in OWN_ROWS and guard.memory.states != memory.states:
                problems.append((path, name, "an effect was made or undone"))
            if is_taken(name, memory, outcome):
                problems.append((path, name, f"its result was taken: {outcome}"))
    assert count > 500
    assert not problems, problems[:5]


def is_taken(name: str, memory: Memory, outcome: Outcome | None) -> bool:
    """True if the result of the owner was taken for one's own."""
    if outcome is None or outcome.kind != "done":
        return False
    if name in OWN_ROWS:
        return (1, "own_undo" if name.startswith("undo") else "own_confirm") in memory.rows
    return outcome.marker not in ("sealed", "nothing_to_undo")


def test_the_owner_goes_on() -> None:
    for path, memory in left_entries():
        for reference in (OWNER, reference_to(OWNER), reference_to(OWNER, is_short=True)):
            guard = GuardOf(memory.copy(), reference)
            for name in MESSAGES:
                outcome = now(MESSAGES[name](guard, HERE, body, CLOCK))  # pyright: ignore[reportArgumentType]
                why = outcome.failure.message if outcome is not None and outcome.failure is not None else ""
                assert "another saga" not in why, (path, name)


@pytest.mark.parametrize("is_short", [False, True])
def test_a_nested_saga_is_known_by_the_start_of_its_root_saga(is_short: bool) -> None:
    for (stored, there), (own, here) in product(NESTED.items(), NESTED.items()):
        is_other = stored != own and "" not in (stored, own)
        for origin in (there, reference_to(there)):
            reference = encode_origin(reference_to(here, is_short=is_short))
            assert is_of_another_saga(encode_origin(origin), reference) == is_other, (stored, own)
            assert start_of_effect(encode_origin(origin)) == stored
