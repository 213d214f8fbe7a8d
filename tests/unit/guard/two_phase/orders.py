"""Operations of a two-phase step in every order, stopped at every statement: crashed there, or frozen and resumed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.two_phase import TwoPhaseGuard
from sagas.protocol.outcomes import Outcome
from tests.unit.guard.two_phase.memory_participant import MemoryDatabase, MemoryParticipant

Kind = Literal["do", "undo", "confirm", "seal"]
Stop = Literal["crash", "freeze", "freeze and lose"]
"""How an operation stops at a statement. ``freeze``: its worker goes on later; ``… and lose``: the server has ended its
transaction meanwhile."""

Order = Sequence[tuple[Kind, tuple[int, Stop] | None]]
"""Operations in their order, each with the statement before which it stops, if it does."""

KINDS: tuple[Kind, ...] = ("do", "undo", "confirm", "seal")
STOPS: tuple[Stop, ...] = ("crash", "freeze", "freeze and lose")
HERE = EntryKey("saga", "step")
MAX_STATEMENTS = 60


class Operation:
    """One delivered operation, performed statement by statement."""

    def __init__(self, database: MemoryDatabase, kind: Kind, name: str, *, forward_hash: str | None = None) -> None:
        self.kind, self.name = kind, name
        self.participant = MemoryParticipant(database, name)
        # No time to wait for a lock: each wait ends the operation, which is repeated by another one.
        clock: dict[str, Any] = {"scheduled_at": 0.0, "deadline": time.time() + 0.05}
        guard = TwoPhaseGuard(self.participant)

        async def act(sql: object) -> str:
            sql.effect = name  # pyright: ignore[reportAttributeAccessIssue]
            return name

        self._coroutine = {
            "do": lambda: guard.do(HERE, "hash", act, **clock),
            "undo": lambda: guard.undo(HERE, forward_hash=forward_hash, **clock),
            "confirm": lambda: guard.confirm(HERE, **clock),
            "seal": lambda: guard.seal(HERE, **clock),
        }[kind]()
        self.outcome: Outcome | None = None

    def run(self, statements: int = MAX_STATEMENTS) -> int:
        """Perform at most so many statements; returns how many there were."""
        for done in range(statements):
            try:
                self._coroutine.send(None)
            except StopIteration as end:
                self.outcome = end.value
                return done
        if statements == MAX_STATEMENTS:
            raise AssertionError(f"{self.name} does not end")
        return statements

    def crash(self) -> None:
        self._coroutine.close()
        self.participant.lose_transactions()


@dataclass
class Promises:
    """Answers so far, and what must be true from then on."""

    done_results: set[str] = field(default_factory=set)
    gone: bool = False
    confirmed: bool = False
    undo_begun: bool = False
    broken: list[str] = field(default_factory=list)

    def check(self, database: MemoryDatabase, operation: Operation, *, resumed: bool = False) -> None:
        """Note the answer of an operation, and compare it with what is there.

        ``resumed``: it was frozen, so what it says may have been true before an undo that has ended since.
        """
        outcome = operation.outcome
        assert outcome is not None
        answer = outcome.marker or outcome.kind
        held = database.prepared.effect if database.prepared is not None else None
        present = database.effects[0] if database.effects else held
        if answer == "done":
            match operation.kind:
                case "do":
                    self._expect(resumed or not self.gone, "told done after it was undone")
                    self._expect(present is not None or self.undo_begun, "told done without an effect")
                    self._expect(outcome.result == present or self.undo_begun, "told another result than the effect's")
                    self.done_results.add(str(outcome.result))
                    several = len(self.done_results) > 1 and not self.undo_begun
                    self._expect(not several, "told two results")
                case "seal":
                    self._expect(present is not None or self.undo_begun, "a seal told done without an effect")
                case "confirm":
                    self.confirmed = True
                    self._expect(bool(database.effects), "told confirmed without an effect")
                case "undo":
                    self.gone = True
        elif answer in ("sealed", "nothing_to_undo"):
            self.gone = True
        elif answer == "late" and operation.kind == "do":
            self._expect(self.undo_begun, "refused although nothing was undone")
        self.look(database)

    def look(self, database: MemoryDatabase) -> None:
        self._expect(len(database.effects) <= 1, "the effect was applied twice")
        self._expect(not (self.gone and database.effects), "undone, and the effect is there")
        self._expect(not (self.gone and database.prepared), "undone, and a transaction is prepared")
        self._expect(not (self.gone and self.confirmed), "undone and confirmed")

    def _expect(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)


def violations(orders: Iterator[Order]) -> tuple[int, dict[str, str]]:
    """Perform every order; returns their number, and an example for each broken promise."""
    count, broken = 0, {}
    for order in orders:
        count += 1
        for promise in perform(order):
            broken.setdefault(promise, " → ".join(f"{kind} {stop or ''}".strip() for kind, stop in order))
    return count, broken


def perform(order: Order) -> list[str]:
    """Perform operations one after the other; a frozen one goes on when the next has ended. Returns broken promises."""
    database, promises = MemoryDatabase(), Promises()
    frozen: list[Operation] = []
    for number, (kind, stop) in enumerate(order, 1):
        operation = Operation(database, kind, f"{kind} {number}")
        promises.undo_begun = promises.undo_begun or kind in ("undo", "seal")
        operation.run(MAX_STATEMENTS if stop is None else stop[0])
        resumed, frozen = frozen, []
        if operation.outcome is not None:
            promises.check(database, operation)
        elif stop is not None and stop[1] == "crash":
            operation.crash()
        else:
            if stop is not None and stop[1] == "freeze and lose":
                operation.participant.lose_transactions()
            frozen = [operation]
        for resumed_operation in resumed:
            resumed_operation.run()
            promises.check(database, resumed_operation, resumed=True)
    for frozen_operation in frozen:
        frozen_operation.run()
        promises.check(database, frozen_operation, resumed=True)
    _finish(database, promises)
    return promises.broken


def _finish(database: MemoryDatabase, promises: Promises) -> None:
    """All workers are alive: an undo has to succeed, unless the effect is committed; and a late attempt is harmless."""
    promises.undo_begun = True
    undo = Operation(database, "undo", "the last undo")
    undo.run()
    promises.check(database, undo)
    assert undo.outcome is not None
    if undo.outcome.marker == "confirmed":
        promises._expect(bool(database.effects), "an undo told confirmed without an effect")
    else:
        promises._expect(undo.outcome.kind == "done", "an undo that nothing disturbs does not succeed")
    late = Operation(database, "do", "the last do")
    late.run()
    promises.look(database)
    late_answer = late.outcome
    assert late_answer is not None
    if not database.effects:
        promises._expect(late_answer.kind == "late", "a late attempt was not refused")


def statements_of(before: Sequence[Kind], kind: Kind) -> int:
    """How many statements ``kind`` has after the operations ``before``."""
    database = MemoryDatabase()
    for number, earlier in enumerate(before):
        Operation(database, earlier, f"{earlier} {number}").run()
    return Operation(database, kind, kind).run()


def orders(length: int, stopped: int = 1, stops: Sequence[Stop] = STOPS) -> Iterator[Order]:
    """Every order of ``length`` operations, at most ``stopped`` of which stop, at each of their statements."""
    for kinds in itertools.product(KINDS, repeat=length):
        limits = [max(statements_of(kinds[:at], kind), statements_of((), kind)) for at, kind in enumerate(kinds)]
        yield [(kind, None) for kind in kinds]
        for places in itertools.chain.from_iterable(
            itertools.combinations(range(length), size) for size in range(1, stopped + 1)
        ):
            points: list[list[tuple[int, Stop]]] = [
                [(at, how) for at in range(1, limits[place] + 1) for how in stops] for place in places
            ]
            for chosen in itertools.product(*points):
                stop: dict[int, tuple[int, Stop]] = dict(zip(places, chosen, strict=True))
                yield [(kind, stop.get(at)) for at, kind in enumerate(kinds)]
